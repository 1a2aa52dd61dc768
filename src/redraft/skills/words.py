"""Closed lexicons that every skill draws from.

Few words, each in very many tasks: a small model learns a word by meeting it often. Every entry is one run of
letters, so that the tokenizer makes one token of it; plurals are written out rather than derived.
"""

from __future__ import annotations

import re
from typing import Final

NAMES: Final = (
    "Max", "Anna", "Ben", "Clara", "David", "Emma", "Felix", "Grace", "Henry", "Ida", "Jack", "Kate", "Leo", "Mia",
    "Noah", "Olga", "Paul", "Rosa", "Sam", "Tina", "Omar", "Vera", "Will", "Zoe", "Adam", "Bella", "Carl", "Dora",
    "Eric", "Fiona", "George", "Helen", "Ivan", "Julia", "Karl", "Lena", "Mark", "Nora", "Oscar", "Peter", "Ruth",
    "Simon", "Tara", "Uma", "Victor", "Wanda", "Alex", "Bruno", "Cora", "Diego", "Elsa", "Frank", "Gina", "Hugo",
    "Iris", "James", "Kira", "Luis", "Maria", "Nina",
)  # fmt: skip

# Countable things: singular and plural.
THINGS: Final = {
    "apple": "apples", "orange": "oranges", "lemon": "lemons", "egg": "eggs", "cookie": "cookies", "cake": "cakes",
    "book": "books", "pen": "pens", "card": "cards", "coin": "coins", "stamp": "stamps", "box": "boxes",
    "ball": "balls", "stone": "stones", "shell": "shells", "button": "buttons", "flower": "flowers", "cup": "cups",
    "plate": "plates", "chair": "chairs", "lamp": "lamps", "key": "keys", "bag": "bags", "ticket": "tickets",
    "photo": "photos", "letter": "letters", "candle": "candles", "brick": "bricks", "nail": "nails", "ring": "rings",
}  # fmt: skip

# Plain nouns, singular, for lists, records and strings.
NOUNS: Final = (
    *THINGS,
    "bread", "milk", "rice", "soup", "salt", "tea", "water", "paper", "glass", "table", "door", "window", "wall",
    "floor", "roof", "house", "garden", "street", "bridge", "tower", "tree", "leaf", "river", "lake", "hill", "sea",
    "beach", "island", "forest", "field", "road", "park", "school", "shop", "market", "office", "farm", "station",
    "train", "bus", "car", "boat", "plane", "bike", "wheel", "clock", "phone", "radio", "camera", "piano", "guitar",
    "drum", "song", "game", "doll", "kite", "coat", "shirt", "shoe", "hat", "belt", "scarf", "knife", "fork", "spoon",
    "bowl", "bottle", "basket", "rope", "hammer", "map", "flag", "desk", "shelf", "bed", "pillow", "mirror", "brush",
    "soap", "sun", "moon", "star", "cloud", "rain", "snow", "wind", "fire", "gold", "silver", "iron",
)  # fmt: skip

VERBS: Final = (
    "walk", "run", "jump", "swim", "read", "write", "draw", "paint", "sing", "dance", "cook", "bake", "clean", "wash",
    "build", "fix", "open", "close", "push", "pull", "carry", "lift", "drop", "find", "hide", "buy", "sell", "give",
    "take", "send", "bring", "call", "help", "meet", "visit", "wait", "sleep", "eat", "drink", "play",
)  # fmt: skip

COLORS: Final = (
    "red", "blue", "green", "yellow", "black", "white", "brown", "pink", "gray", "purple",
)  # fmt: skip

ANIMALS: Final = (
    "cat", "dog", "bird", "fish", "horse", "cow", "sheep", "goat", "duck", "hen", "mouse", "rabbit", "fox", "wolf",
    "bear", "lion", "tiger", "monkey", "frog", "snake", "bee", "ant", "owl", "eagle",
)  # fmt: skip

CITIES: Final = (
    "Paris", "London", "Berlin", "Rome", "Madrid", "Vienna", "Prague", "Lisbon", "Dublin", "Oslo", "Athens", "Cairo",
    "Tokyo", "Delhi", "Lima", "Boston", "Chicago", "Toronto", "Sydney", "Moscow",
)  # fmt: skip

ADJECTIVES: Final = (
    "big", "small", "old", "new", "long", "short", "tall", "fast", "slow", "hot", "cold", "warm", "light", "heavy",
    "soft", "hard", "clean", "dark", "bright", "quiet", "loud", "happy", "round", "flat",
)  # fmt: skip

JOBS: Final = (
    "teacher", "doctor", "nurse", "baker", "farmer", "driver", "pilot", "painter", "writer", "singer", "cook",
    "lawyer", "judge", "clerk", "sailor",
)  # fmt: skip

DAYS: Final = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")

MONTHS: Final = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November",
    "December",
)  # fmt: skip

_PIECES: Final = re.compile(r"[A-Za-z]+|[0-9]|[^A-Za-z0-9]+")


def pieces(text: str) -> int:
    """How many pieces the tokenizer cuts a text into: words, single digits, and runs of anything else."""
    return len(_PIECES.findall(text))
