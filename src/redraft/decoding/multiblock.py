"""Multi-block editing: blocks that are written stay open for a while and are edited together with those that came after
them (LLaDA2.1 report, section 2.2; spec/decoding.md says what it leaves open).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from redraft.decoding.block import BlockRun
from redraft.decoding.canvas import Canvas
from redraft.decoding.modes import edit_of
from redraft.decoding.policy import DraftAndEdit
from redraft.decoding.stopping import Ending
from redraft.types import SamplingParams


@dataclass(frozen=True, slots=True)
class MultiBlock:
    """blocks: how many written blocks stay open while the next is drafted. policy: that of a pass over them; it never
    meets a mask, so its steps are all post steps."""

    blocks: int
    policy: DraftAndEdit


def multiblock_of(params: SamplingParams) -> MultiBlock | None:
    """None without multi-block editing, or when its threshold lets no edit through."""
    policy = edit_of(params)
    if not params.mbe_blocks or policy.edit is None:
        return None
    return MultiBlock(params.mbe_blocks, policy)


class Window:
    """The blocks of one answer that are written and not frozen, oldest first; they follow each other.

    A block that is done joins (`add`), and `settle` says what comes of it. Without multi-block editing (settings None)
    a block is frozen as it comes.
    """

    def __init__(self, settings: MultiBlock | None) -> None:
        self.canvases: list[Canvas] = []
        self.settings = settings
        self._looked: tuple[int, bytes] | None = None  # what a step has looked at and left as it is

    @property
    def tokens(self) -> np.ndarray:
        """int64, those of all blocks."""
        return np.concatenate([canvas.tokens for canvas in self.canvases])

    def add(self, run: BlockRun) -> None:
        """A block that is done."""
        self.canvases.append(run.canvas)
        # A pass over this block alone would repeat its last step.
        if self.settings and run.settled and run.policy.edit == self.settings.policy.edit and len(self.canvases) == 1:
            self._looked = self._state()

    def settle(self, ending: Ending) -> Iterator[BlockRun | Canvas]:
        """After a block has joined: a pass that edits all blocks as one large block, which the caller runs until it is
        done before it goes on; then the older ones, frozen, which the caller hands to `ending`. Where the text ends
        among the rest there is one more pass, over that, and it is frozen too.
        """
        for closing in (False, True):
            if closing and not (self.canvases and ending.ends_within(self._generated)):
                return
            if (run := self._due()) is not None:
                yield run
                self._take(run)
            for canvas in self._leave(0 if closing or self.settings is None else self.settings.blocks):
                yield canvas
                if ending.reason is not None:
                    return

    @property
    def _generated(self) -> list[int]:
        """The tokens that aren't the prompt's."""
        return [token for canvas in self.canvases for token in canvas.tokens[~canvas.prompt].tolist()]

    def _due(self) -> BlockRun | None:
        """A pass over all blocks; None if it could only repeat a step that changed nothing."""
        if self.settings is None or self._looked == self._state():
            return None
        return BlockRun(self.settings.policy, Canvas.joined(self.canvases))

    def _take(self, run: BlockRun) -> None:
        self.canvases = run.canvas.split(self.canvases)
        if run.settled:
            self._looked = self._state()

    def _leave(self, kept: int) -> list[Canvas]:
        count = max(0, len(self.canvases) - kept)
        frozen, self.canvases = self.canvases[:count], self.canvases[count:]
        return frozen

    def _state(self) -> tuple[int, bytes]:
        return self.canvases[0].block, self.tokens.tobytes()
