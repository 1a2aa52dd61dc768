"""One block from its first step to its last: the policy's steps, and the jump to the end of a cycle."""

from __future__ import annotations

from redraft.decoding.candidates import Candidates
from redraft.decoding.canvas import Canvas, Change
from redraft.decoding.cycle import Trail
from redraft.decoding.policy import DraftAndEdit


class BlockRun:
    """The state of one block being decoded. The caller forwards `canvas.tokens` and hands back candidates until
    `done`; it never sees thresholds, and the policy never sees keys and values.

    settled: the last step looked at the block as it is now, without a mask, and changed nothing.
    """

    def __init__(self, policy: DraftAndEdit, canvas: Canvas) -> None:
        self.policy = policy
        self.canvas = canvas
        self.done = self.settled = False
        self._trail = Trail()

    def advance(self, candidates: Candidates) -> Change:
        """Takes one step. When the block has entered a cycle the change includes the jump to its final state."""
        before = self.canvas
        after, change = self.policy.step(before, candidates)
        self.done = self.policy.done(after, change)
        self.settled = before.filled and not change
        if after.filled and not self.done:
            ahead = self._trail.follow(after, self.policy.post_steps_left(after))
            if ahead is not after:
                after, change, self.done = ahead, Change.between(before, ahead), True
        self.canvas = after
        return change
