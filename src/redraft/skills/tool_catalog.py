"""What the tools of the *tools* skill can do: their names, parameters and how people ask for them.

A `Concept` is one ability. A task draws one of its names, a name for each of its parameters and which optional
parameters it has, so the same wish must be mapped onto many different signatures.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any, Final

from redraft.skills.words import ADJECTIVES, ANIMALS, CITIES, COLORS, DAYS, NAMES, NOUNS, THINGS

ROOMS: Final = ("kitchen", "office", "garden", "hall", "bedroom", "cellar")
LANGUAGES: Final = ("French", "German", "Spanish", "Italian", "Dutch", "Greek")
VEHICLES: Final = ("bus", "train", "car", "bike")
EVENTS: Final = ("party", "class", "concert", "meeting", "race", "dinner", "show", "game")
FOODS: Final = ("bread", "rice", "soup", "cake", "fish", "milk", "salt", "tea")
CHORES: Final = ("buy", "bring", "sell", "find", "fix", "clean", "wash", "take")
THINGS_TO_DO: Final = (*THINGS, *FOODS)


@dataclass(frozen=True)
class Slot:
    """One parameter: names it may have and where its values come from.

    words: pools of words, one word from each; numbers: a closed range; neither: a flag.
    told: how an optional one is said, with {} for the value; a flag's two forms are for true and false.
    choice: whether a signature may list its values (an enum).
    """

    keys: tuple[str, ...]
    words: tuple[tuple[str, ...], ...] = ()
    numbers: tuple[int, int] | None = None
    told: tuple[str, ...] = ()
    choice: bool = False

    @property
    def flag(self) -> bool:
        return not self.words and self.numbers is None

    def draw(self, rng: random.Random, pool: tuple[str, ...] = ()) -> Any:
        """A value; `pool` restricts it to the values of an enum."""
        if self.flag:
            return rng.random() < 0.5
        if self.numbers is not None:
            return rng.randint(*self.numbers)
        return rng.choice(pool) if pool else " ".join(map(rng.choice, self.words))

    def say(self, rng: random.Random, value: Any) -> str:
        """The words that give an optional parameter its value."""
        return self.told[0 if value else 1] if self.flag else rng.choice(self.told).format(value)


@dataclass(frozen=True)
class Concept:
    """An ability. `requests` take the required slots by position; `topic` names it when no tool has it."""

    topic: str
    names: tuple[str, ...]
    requests: tuple[str, ...]
    required: tuple[Slot, ...]
    optional: tuple[Slot, ...] = ()


def _hour(*told: str) -> Slot:
    return Slot(("hour", "time", "at"), numbers=(1, 12), told=told or ("at {}",))


def _day(*told: str) -> Slot:
    return Slot(("day", "date", "when"), words=(DAYS,), told=told or ("on {}",))


def _city(*keys: str, told: tuple[str, ...] = ("in {}",)) -> Slot:
    return Slot(keys or ("city", "place", "town"), words=(CITIES,), told=told)


def _person(*keys: str, told: tuple[str, ...] = ("for {}",)) -> Slot:
    return Slot(keys or ("name", "person", "who"), words=(NAMES,), told=told)


def _room() -> Slot:
    return Slot(("room", "place", "where"), words=(ROOMS,), told=("in the {}",), choice=True)


def _color(told: str = "in {}") -> Slot:
    return Slot(("color", "shade"), words=(COLORS,), told=(told,), choice=True)


def _text() -> Slot:
    return Slot(("text", "body", "words"), words=(CHORES, THINGS_TO_DO))


CONCEPTS: Final = (
    Concept(
        "alarms",
        ("set_alarm", "add_alarm", "new_alarm"),
        ("set an alarm for {}", "wake me at {}"),
        (_hour(),),
        (_day(), Slot(("sound", "ring"), told=("with sound", "without sound"))),
    ),
    Concept(
        "deleting alarms",
        ("delete_alarm", "remove_alarm", "stop_alarm"),
        ("delete the alarm at {}", "drop my alarm at {}"),
        (_hour(),),
        (_day(),),
    ),
    Concept(
        "messages",
        ("send_message", "send_text", "write_message"),
        ("text {} {}", "tell {} to {}"),
        (_person("to", "name", "person"), _text()),
        (Slot(("app", "by"), words=(("mail", "phone", "radio"),), told=("by {}",), choice=True),),
    ),
    Concept(
        "the weather",
        ("get_weather", "check_weather", "find_weather"),
        ("get the weather in {}", "check the weather for {}"),
        (_city(),),
        (_day(), Slot(("rain",), told=("with rain", "without rain"))),
    ),
    Concept(
        "music",
        ("play_music", "play_song", "start_song"),
        ("play {}", "play the song {}"),
        (Slot(("song", "title", "music"), words=(ADJECTIVES, NOUNS)),),
        (Slot(("volume", "level"), numbers=(1, 20), told=("at volume {}",)), _room()),
    ),
    Concept(
        "lights",
        ("set_light", "change_light", "turn_light"),
        ("make the {} light {}", "turn the {} light {}"),
        (_room(), _color()),
        (Slot(("level", "power"), numbers=(1, 20), told=("at level {}",)),),
    ),
    Concept(
        "heating",
        ("set_heat", "change_heat", "heat_room"),
        ("heat the {} to {}", "set the {} to {} degrees"),
        (_room(), Slot(("degrees", "heat"), numbers=(10, 30))),
        (_hour(),),
    ),
    Concept(
        "tables",
        ("book_table", "get_table", "find_table"),
        ("book a table for {}", "find a table for {}"),
        (Slot(("people", "guests", "seats"), numbers=(2, 12)),),
        (_day(), _hour(), _city()),
    ),
    Concept(
        "shopping",
        ("buy_item", "order_item", "get_item"),
        ("buy {} {}", "order {} {}"),
        (Slot(("count", "number"), numbers=(2, 20)), Slot(("item", "thing"), words=(tuple(THINGS.values()),))),
        (_color(), _person(told=("for {}",))),
    ),
    Concept(
        "routes",
        ("find_route", "get_route", "plan_trip"),
        ("find a way from {} to {}", "go from {} to {}"),
        (_city("from", "start"), _city("to", "end")),
        (Slot(("by", "travel"), words=(VEHICLES,), told=("by {}",), choice=True), _day()),
    ),
    Concept(
        "notes",
        ("add_note", "save_note", "write_note"),
        ("note {}", "write the note {}"),
        (_text(),),
        (_color(), _day("for {}")),
    ),
    Concept(
        "phone calls",
        ("call_person", "make_call", "start_call"),
        ("call {}", "phone {}"),
        (_person(),),
        (_hour(), Slot(("video", "camera"), told=("with video", "without video"))),
    ),
    Concept(
        "timers",
        ("set_timer", "start_timer", "new_timer"),
        ("set a timer for {} minutes", "start a timer of {} minutes"),
        (Slot(("minutes", "length"), numbers=(1, 60)),),
        (Slot(("name", "label"), words=(FOODS,), told=("for the {}",)),),
    ),
    Concept(
        "the calendar",
        ("add_event", "plan_event", "new_event"),
        ("plan a {} on {}", "add a {} on {}"),
        (Slot(("event", "title"), words=(EVENTS,)), _day()),
        (_hour(), _city(), _person("guest", "with", told=("with {}",))),
    ),
    Concept(
        "translation",
        ("translate", "translate_word", "find_word"),
        ("translate {} to {}", "say {} in {}"),
        (Slot(("word", "text"), words=(NOUNS,)), Slot(("language", "to"), words=(LANGUAGES,), choice=True)),
    ),
    Concept(
        "files",
        ("open_file", "read_file", "show_file"),
        ("open the file {}", "show the file {}"),
        (Slot(("file", "name"), words=(NOUNS,)),),
        (Slot(("page", "line"), numbers=(1, 99), told=("at page {}",)),),
    ),
    Concept(
        "deleting files",
        ("delete_file", "remove_file", "drop_file"),
        ("delete the file {}", "remove the file {}"),
        (Slot(("file", "name"), words=(NOUNS,)),),
        (Slot(("copy", "backup"), told=("with a copy", "without a copy")),),
    ),
    Concept(
        "feeding animals",
        ("feed_pet", "feed_animal", "give_food"),
        ("feed the {} {}", "give the {} some {}"),
        (Slot(("animal", "pet"), words=(ANIMALS,)), Slot(("food", "meal"), words=(FOODS,), choice=True)),
        (_hour(),),
    ),
    Concept(
        "doors",
        ("set_door", "move_door", "change_door"),
        ("keep the {} door {}", "make the {} door {}"),
        (
            Slot(("door", "side"), words=(("front", "back", "left", "right"),), choice=True),
            Slot(("state", "to"), words=(("open", "closed", "locked"),), choice=True),
        ),
        (_hour(),),
    ),
    Concept(
        "tickets",
        ("buy_ticket", "book_ticket", "get_ticket"),
        ("get a ticket to {}", "book a ticket to {}"),
        (_city("city", "to"),),
        (_day(), Slot(("by", "travel"), words=(VEHICLES,), told=("by {}",), choice=True), _person()),
    ),
)
