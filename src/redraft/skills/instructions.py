"""Sentences under checkable constraints: numbering, case, brackets, order, repeats, words to add, drop or replace.

A constraint changes a `Section`, the description of a text from which the reference answer is rendered and by which
any response is checked: line by line, free where the prompt leaves freedom (order, articles, final full stops).
Every word comes from one short closed list, so that a small model can learn its upper case and alphabet.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final, NamedTuple

from redraft.skills.base import Skill, Task
from redraft.skills.words import ANIMALS

MAX_RESPONSE: Final = 4000  # characters; no right answer comes near
QUALITIES: Final = ("big", "small", "old", "fast", "slow", "happy", "quiet", "loud")
CAN: Final = ("run", "jump", "swim", "sing", "sleep", "eat", "play", "dance")
FEELINGS: Final = ("like", "see", "want", "need")
ADVERBS: Final = ("now", "today", "here", "again")
OPENINGS: Final = ("start", "hello")
CLOSINGS: Final = ("done", "end")
MARKERS: Final = ("number", "letter", "dash", "star", "initial")
WRAPS: Final = {"brackets": "[]", "quotes": '""', "parentheses": "()"}
SEPARATORS: Final = {"a slash": " / ", "a bar": " | ", "a plus sign": " + "}
HEADINGS: Final = ("Part one:", "Part two:")
ARTICLES: Final = frozenset(("the", "a", "an"))
COUNTS: Final = {2: "twice", 3: "three times"}


@dataclass(frozen=True)
class Section:
    """What a text must be.

    lines: the sentences without marks, in canonical order. subjects: the word each is about. ordered: whether
    that order is asked for. before, after: whole lines around the sentences.
    """

    lines: tuple[str, ...]
    subjects: tuple[str, ...]
    ordered: bool = False
    marker: str | None = None
    case: str | None = None
    wrap: str | None = None
    separator: str = "\n"
    before: str | None = None
    after: str | None = None

    def mark(self, place: int, subject: str) -> str:
        """What precedes the sentence at a 0-based place."""
        marks = {
            "number": f"{place + 1}. ",
            "letter": f"{chr(ord('a') + place)}) ",
            "dash": "- ",
            "star": "* ",
            "initial": f"{subject[0]}: ",
        }
        return "" if self.marker is None else marks[self.marker]

    def render(self) -> str:
        """The canonical text."""
        opening, closing = WRAPS[self.wrap] if self.wrap else ("", "")
        stop = "." if self.separator == "\n" else ""
        parts = [
            f"{self.mark(place, subject)}{opening}{line[0].upper()}{line[1:]}{stop}{closing}"
            for place, (line, subject) in enumerate(zip(self.lines, self.subjects, strict=True))
        ]
        text = self.separator.join(filter(None, [self.before, *parts, self.after]))
        return _cased(text, self.case)

    def accepts(self, text: str) -> bool:
        """Whether a text keeps every constraint."""
        if self.case is not None and _cased(text, self.case) != text:
            return False
        parts = [part.strip() for part in text.strip().split(self.separator.strip() or "\n")]
        for edge, place in ((self.before, 0), (self.after, -1)):
            if edge is not None and (not parts or parts.pop(place).casefold().rstrip(".:!") != edge.casefold()):
                return False
        if len(parts) != len(self.lines):
            return False
        wanted = [(_words(line), subject) for line, subject in zip(self.lines, self.subjects, strict=True)]
        subject_of = dict(wanted)
        found = [self._sentence(part, place, subject_of) for place, part in enumerate(parts)]
        if any(words is None for words in found):
            return False
        expected = [words for words, _ in wanted]
        return found == expected if self.ordered else sorted(filter(None, found)) == sorted(expected)

    def _sentence(self, part: str, place: int, subject_of: dict[tuple[str, ...], str]) -> tuple[str, ...] | None:
        """The words of one sentence stripped of its mark and brackets; None where these, or the words, are wrong."""
        opening, closing = WRAPS[self.wrap] if self.wrap else ("", "")
        for subject in set(subject_of.values()):
            mark = self.mark(place, subject)
            if not part.casefold().startswith(mark.casefold()):
                continue
            rest = part[len(mark) :].removesuffix(".") if closing else part[len(mark) :]
            if not (rest.startswith(opening) and rest.endswith(closing)):
                continue
            inner = rest[len(opening) : len(rest) - len(closing)]
            words = _words(inner)
            if re.fullmatch(r"[A-Za-z][A-Za-z, ]*[.!]?", inner) and subject_of.get(words) == subject:
                return words
        return None


def _cased(text: str, case: str | None) -> str:
    if case == "upper":
        return text.upper()
    if case == "capital":
        return re.sub(r"[A-Za-z]+", lambda match: match[0][0].upper() + match[0][1:], text)
    return text


def _words(text: str) -> tuple[str, ...]:
    """The words in lower case, without articles."""
    return tuple(word for word in re.findall(r"[a-z]+", text.casefold()) if word not in ARTICLES)


class Change(NamedTuple):
    """key: for the composition. phrase: the sentence in the prompt. apply: its effect."""

    key: str
    phrase: str
    apply: Callable[[Section], Section]


def _reordered(section: Section, order: list[int], **changes: Any) -> Section:
    picked = {name: tuple(getattr(section, name)[at] for at in order) for name in ("lines", "subjects")}
    return replace(section, **picked, **changes)


def _marker(rng: random.Random, section: Section) -> Change:
    # Upper-case first letters of animals would be too rare to learn.
    kind = rng.choice([kind for kind in MARKERS if section.case is None or kind != "initial"])
    phrases = {
        "number": ("Number the sentences.", "Put a number before each sentence."),
        "letter": ("Label the sentences a, b, and so on.", "Put a letter from a on before each sentence."),
        "dash": ("Put a dash before each sentence.", "Use a dash for each sentence."),
        "star": ("Put a star before each sentence.", "Use a star for each sentence."),
        "initial": ("First put the first letter of the animal.", "Put the first letter of the animal before."),
    }[kind]
    return _change(rng, kind, phrases, lambda section: replace(section, marker=kind))


def _case(rng: random.Random, section: Section) -> Change:
    kind = rng.choice(("upper", "capital"))
    phrases = {
        "upper": ("Use upper case only.", "Write all in upper case."),
        "capital": ("Start each word with a capital.", "Use a capital for each word."),
    }[kind]
    return _change(rng, kind, phrases, lambda section: replace(section, case=kind))


def _wrap(rng: random.Random, section: Section) -> Change:
    kind = rng.choice(tuple(WRAPS))
    phrases = (f"Put each sentence in {kind}.", f"Use {kind} around each sentence.")
    return _change(rng, kind, phrases, lambda section: replace(section, wrap=kind))


def _order(rng: random.Random, section: Section) -> Change:
    if rng.random() < 0.5:
        return _change(
            rng,
            "reversed",
            ("Reverse the order.", "Write them from last to first."),
            lambda section: _reordered(section, list(range(len(section.lines)))[::-1], ordered=True),
        )
    return _change(
        rng,
        "alphabet",
        ("Order them from a to z.", "Sort them by animal from a to z."),
        lambda section: _reordered(
            section, sorted(range(len(section.lines)), key=section.subjects.__getitem__), ordered=True
        ),
    )


def _edge(rng: random.Random, section: Section) -> Change:
    kind = rng.choice(("before", "after", "total"))
    if kind == "total":
        phrases = ("End with the number of sentences.", "On the last line give the number of sentences.")
        return _change(rng, kind, phrases, lambda section: replace(section, after=str(len(section.lines))))
    word = rng.choice(OPENINGS if kind == "before" else CLOSINGS)
    phrases = {
        "before": (f"Begin with the line {word}.", f"The first line is {word}."),
        "after": (f"Close with the line {word}.", f"The last line is {word}."),
    }[kind]
    return _change(rng, kind, phrases, lambda section: replace(section, **{kind: word}))


def _copies(rng: random.Random, section: Section) -> Change:
    count = 3 if len(section.lines) == 3 else 2
    phrases = (f"Write each sentence {COUNTS[count]}.", f"Give every sentence {COUNTS[count]}.")
    return _change(
        rng,
        f"copies{count}",
        phrases,
        lambda section: _reordered(section, [at for at in range(len(section.lines)) for _ in range(count)]),
    )


def _drop(rng: random.Random, section: Section) -> Change:
    subject = rng.choice(section.subjects)
    return _change(
        rng,
        "drop",
        (f"Leave out the {subject}.", f"Do not use the word {subject}."),
        lambda section: _reordered(section, [at for at, word in enumerate(section.subjects) if word != subject]),
    )


def _exchange(rng: random.Random, section: Section) -> Change:
    subject = rng.choice(section.subjects)
    initials = {word[0] for word in section.subjects}
    other = rng.choice([word for word in ANIMALS if word[0] not in initials])

    def apply(section: Section) -> Section:
        lines = tuple(re.sub(rf"\b{subject}\b", other, line) for line in section.lines)
        return replace(
            section, lines=lines, subjects=tuple(other if word == subject else word for word in section.subjects)
        )

    return _change(rng, "exchange", (f"Write {other} instead of {subject}.", f"Replace {subject} by {other}."), apply)


def _separator(rng: random.Random, section: Section) -> Change:
    kind = rng.choice(tuple(SEPARATORS))
    phrases = (f"Write one line with {kind} between sentences.", f"Separate the sentences by {kind}.")
    return _change(rng, kind, phrases, lambda section: replace(section, separator=SEPARATORS[kind]))


def _adverb(rng: random.Random, section: Section) -> Change:
    word = rng.choice(ADVERBS)
    first = rng.random() < 0.5
    verb = "Start" if first else "End"
    phrases = (f"{verb} each sentence with the word {word}.", f"{verb} every sentence with {word}.")

    def apply(section: Section) -> Section:
        return replace(section, lines=tuple(f"{word} {line}" if first else f"{line} {word}" for line in section.lines))

    return _change(rng, f"{verb}-word", phrases, apply)


def _change(rng: random.Random, key: str, phrases: tuple[str, str], apply: Callable[[Section], Section]) -> Change:
    form = rng.randrange(len(phrases))
    return Change(f"{key}{form}", phrases[form], apply)


# In the order of their effect: edits of the list come before what is done to its sentences.
CHANGES: Final = (_drop, _exchange, _order, _copies, _adverb, _case, _marker, _wrap, _separator, _edge)
# What would need a convention that the prompt does not state.
CLASHES: Final = ({_separator, _marker}, {_separator, _edge}, {_separator, _copies}, {_drop, _exchange})
PART_CHANGES: Final = (_order, _adverb, _marker, _wrap, _case)


def _request(rng: random.Random, size: int) -> tuple[str, str, Section]:
    """(key, prompt, section) of what to write about some animals with different first letters."""
    animals = list({word[0]: word for word in rng.sample(ANIMALS, len(ANIMALS))}.values())[:size]
    listed = ", ".join(animals)
    kind = rng.choice(("is", "can", "feel", "pair"))
    form = rng.randrange(3)
    if kind == "pair":
        size = min(size, 5)
        animals = animals[:size]
        words = rng.sample(QUALITIES, size)
        lines = [f"the {animal} is {word}" for animal, word in zip(animals, words, strict=True)]
        paired = ", ".join(f"{animal} {word}" for animal, word in zip(animals, words, strict=True))
        asks = (
            f"Write a sentence for each: {paired}.",
            f"Say what each animal is: {paired}.",
            f"Turn each pair into a sentence: {paired}.",
        )
    elif kind == "feel":
        word = rng.choice(FEELINGS)
        lines = [f"we {word} the {animal}" for animal in animals]
        asks = (
            f"Say that we {word} each of these: {listed}.",
            f"Write that we {word} each one: {listed}.",
            f"For {listed}: say that we {word} it.",
        )
    else:
        word = rng.choice(QUALITIES if kind == "is" else CAN)
        lines = [f"the {animal} {kind} {word}" for animal in animals]
        asks = (
            f"Say that each of these {kind} {word}: {listed}.",
            f"Write that each one {kind} {word}: {listed}.",
            f"For {listed}: say that it {kind} {word}.",
        )
    return f"{kind}{form}/{size}", asks[form], Section(tuple(lines), tuple(animals))


def _constrained(rng: random.Random, count: int) -> tuple[str, str, Section]:
    """(key, prompt, section) of a text under several changes, told in any order, applied in that of their effect."""
    kinds = rng.sample(CHANGES, count)
    while any(clash <= set(kinds) for clash in CLASHES):
        kinds = rng.sample(CHANGES, count)
    size = rng.choice((3, 4)) if _copies in kinds else rng.choice((3 + count, min(4 + count, 6)))
    key, request, section = _request(rng, size)
    changes = []
    for kind in sorted(kinds, key=CHANGES.index):
        changes.append(kind(rng, section))
        section = changes[-1].apply(section)
    rng.shuffle(changes)
    told = " ".join([request, *(change.phrase for change in changes)])
    return f"{key}/{','.join(change.key for change in changes)}", told, section


def _parts(rng: random.Random) -> tuple[str, str, list[Section]]:
    """(key, prompt, sections) of the same sentences twice, with a change each."""
    key, request, section = _request(rng, 5)
    changes = [kind(rng, section) for kind in rng.sample(PART_CHANGES, 2)]
    told = " ".join(
        f"{heading} {change.phrase[0].lower()}{change.phrase[1:]}"
        for heading, change in zip(HEADINGS, changes, strict=True)
    )
    key = f"{key}/parts/{','.join(change.key for change in changes)}"
    return key, f"{request} {told}", [change.apply(section) for change in changes]


class Instructions(Skill):
    """Sentences about a few animals under one to three constraints, or in two parts with a constraint each."""

    name: ClassVar[str] = "instructions"
    level_descriptions: ClassVar[dict[int, str]] = {
        1: "4-5 sentences under one constraint (3-4 where it repeats them)",
        2: "5-6 sentences under two constraints (3-4 where one repeats them)",
        3: "6 sentences under three constraints (3-4 where one repeats them), or two parts of 5 with one each",
    }

    def sample(self, rng: random.Random, level: int) -> Task:
        if level == 3 and rng.random() < 0.5:
            key, prompt, sections = _parts(rng)
        else:
            key, prompt, section = _constrained(rng, level)
            sections = [section]
        reference = {"sections": [_fields(section) for section in sections]}
        return Task(self.name, level, prompt, _render(sections), f"{level}/{key}", reference)

    def grade(self, task: Task, response: str) -> float:
        sections = [_section(fields) for fields in task.reference["sections"]]
        if len(response) > MAX_RESPONSE:
            return 0.0
        texts = _split_parts(response) if len(sections) > 1 else [response.strip()]
        if texts is None or len(texts) != len(sections):
            return 0.0
        return float(all(section.accepts(text) for section, text in zip(sections, texts, strict=True)))


def _fields(section: Section) -> dict[str, Any]:
    """A section as JSON gives it back: lists, no tuples."""
    return {**vars(section), "lines": list(section.lines), "subjects": list(section.subjects)}


def _section(fields: dict[str, Any]) -> Section:
    return Section(**{**fields, "lines": tuple(fields["lines"]), "subjects": tuple(fields["subjects"])})


def _render(sections: list[Section]) -> str:
    if len(sections) == 1:
        return sections[0].render()
    return "\n".join(f"{heading}\n{section.render()}" for heading, section in zip(HEADINGS, sections, strict=True))


def _split_parts(response: str) -> list[str] | None:
    """The texts under the two headings, each of which must stand once on a line of its own."""
    lines = [line.strip() for line in response.strip().splitlines()]
    places = [place for place, line in enumerate(lines) if line in HEADINGS]
    if [lines[place] for place in places] != list(HEADINGS) or places[0] != 0:
        return None
    return ["\n".join(lines[1 : places[1]]).strip(), "\n".join(lines[places[1] + 1 :]).strip()]


SKILL: Final = Instructions()
