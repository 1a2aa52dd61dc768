"""From a row to its training documents: tokens, and which of them are learnt."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from redraft.errors import InvalidInput, TemplateError
from redraft.text.tokenizer import Tokenizer
from redraft.training.data.rows import BadRow, Chat, Plain, Preference, Row, Text
from redraft.types import Pair, Sample

PIECE = 40  # bits below the number of a piece in the index of a document


class Renderer:
    """Makes documents of rows.

    longest: tokens of a document at most; a `Text` is split into pieces of this many, rounded down to whole blocks.
    """

    def __init__(self, tokenizer: Tokenizer, longest: int, block_length: int = 1) -> None:
        if not tokenizer.eos_ids:
            raise InvalidInput("the tokenizer names no EOS token; training needs one")
        self.tokenizer, self.longest = tokenizer, longest
        self.piece = max(longest // block_length * block_length, 1)
        self.eos = tokenizer.eos_ids[0]

    def documents(self, row: Row, index: int) -> list[Sample]:
        """The row's documents; the first has `index`, the others numbers that no other document has. Raises BadRow."""
        if isinstance(row, Preference):
            raise BadRow("is a preference pair; the objective learns documents")
        if isinstance(row, Text):
            ids = [*self._encode(row.text), self.eos]
            parts = [ids[i : i + self.piece] for i in range(0, len(ids), self.piece)]
            return [_sample(part, [True] * len(part), index, number) for number, part in enumerate(parts)]
        found = [self._plain(row)] if isinstance(row, Plain) else self._chat(row)
        return [_sample(*self._ended(ids, mask), index, number) for number, (ids, mask) in enumerate(found)]

    def pair(self, row: Row, index: int) -> Pair:
        """The row's pair. Raises BadRow."""
        if not isinstance(row, Preference):
            raise BadRow("isn't a preference pair; the objective needs chosen and rejected")
        sides: list[Sample] = []
        for number, side in enumerate((row.chosen, row.rejected)):
            documents = self.documents(side, index)
            if len(documents) > 1:
                raise BadRow("the chat template rewrites earlier turns, so an answer of several turns isn't one text")
            sides.append(Sample(documents[0].tokens, documents[0].supervised, numbered(index, number)))
        return Pair(sides[0], sides[1], index)

    def _plain(self, row: Plain) -> tuple[list[int], list[bool]]:
        # Encoded apart: generation continues the ids of the prompt.
        prompt, answer = self._encode(row.prompt), self._encode(row.completion)
        return prompt + answer, [False] * len(prompt) + [True] * len(answer)

    def _chat(self, row: Chat) -> list[tuple[list[int], list[bool]]]:
        try:
            return self.tokenizer.render_documents(row.messages, row.tools, row.learnt)
        except (InvalidInput, TemplateError) as error:
            raise BadRow(str(error)) from error

    def _ended(self, ids: list[int], mask: list[bool]) -> tuple[list[int], list[bool]]:
        """The document up to its last learnt token, which is an EOS."""
        if not any(mask):
            raise BadRow("nothing in it is learnt")
        end = len(mask) - mask[::-1].index(True)
        ids, mask = ids[:end], mask[:end]
        if ids[-1] not in self.tokenizer.eos_ids:
            ids, mask = [*ids, self.eos], [*mask, True]
        if len(ids) > self.longest:
            raise BadRow(f"has {len(ids)} tokens, over data.max_length or the model's context of {self.longest}")
        return ids, mask

    def _encode(self, text: str) -> list[int]:
        try:
            return self.tokenizer.encode(text)
        except InvalidInput as error:
            raise BadRow(str(error)) from error


def numbered(index: int, piece: int) -> int:
    """The index of a piece of a row; the first piece has the row's."""
    return index + (piece << PIECE)


def _sample(ids: Sequence[int], mask: Sequence[bool], index: int, piece: int) -> Sample:
    return Sample(np.array(ids, np.int32), np.array(mask, bool), numbered(index, piece))
