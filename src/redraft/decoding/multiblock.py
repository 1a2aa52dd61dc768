"""Multi-block editing: blocks that are written stay open for a while and are edited together with those that came after
them (LLaDA2.1 report, section 2.2; spec/decoding.md says what it leaves open).

L is the block length.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from redraft.decoding.block import BlockRun
from redraft.decoding.canvas import Canvas
from redraft.decoding.modes import edit_of
from redraft.decoding.policy import DraftAndEdit
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
    """The blocks of one answer that are written and not frozen, oldest first.

    A block that is done joins (`add`). Then a pass edits all of them as one large block (`due`, `take`), the older ones
    leave frozen (`leave`), and the rest waits for the next block. At the end of the text there is one more pass over
    the rest, and all are frozen (`close`). Without multi-block editing a block leaves as it comes.
    """

    def __init__(self, settings: MultiBlock | None) -> None:
        self.canvases: list[Canvas] = []
        self._settings = settings
        self._settled: tuple[int, bytes] | None = None  # what a step has looked at and left as it is

    @property
    def positions(self) -> int:
        return sum(len(canvas.tokens) for canvas in self.canvases)

    @property
    def tokens(self) -> np.ndarray:
        """int64 [positions]"""
        return np.concatenate([canvas.tokens for canvas in self.canvases])

    @property
    def generated(self) -> list[int]:
        """The tokens that aren't the prompt's."""
        return [token for canvas in self.canvases for token in canvas.tokens[~canvas.prompt].tolist()]

    def add(self, run: BlockRun, *, changed: bool) -> None:
        """A block that is done. changed: whether its last step did something."""
        self.canvases.append(run.canvas)
        if self._settings and not changed and run.policy.edit == self._settings.policy.edit and len(self.canvases) == 1:
            self._settled = self._state()

    def due(self) -> BlockRun | None:
        """The pass over all blocks; None if it could only repeat a step that changed nothing."""
        if self._settings is None or not self.canvases or self._settled == self._state():
            return None
        return BlockRun(self._settings.policy, Canvas.joined(self.canvases))

    def take(self, run: BlockRun, *, changed: bool) -> None:
        """The result of a pass that is done."""
        self.canvases = run.canvas.split(self.canvases)
        if not changed:
            self._settled = self._state()

    def leave(self) -> list[Canvas]:
        """The blocks that no later pass may edit."""
        count = max(0, len(self.canvases) - (self._settings.blocks if self._settings else 0))
        frozen, self.canvases = self.canvases[:count], self.canvases[count:]
        return frozen

    def close(self) -> list[Canvas]:
        """All blocks."""
        frozen, self.canvases = self.canvases, []
        return frozen

    def _state(self) -> tuple[int, bytes]:
        return self.canvases[0].block, self.tokens.tobytes()
