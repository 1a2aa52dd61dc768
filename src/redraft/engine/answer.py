"""One request while it is answered: its choices, and what becomes of them together."""

from __future__ import annotations

from redraft.decoding.canvas import Change
from redraft.engine.events import canvas_event, pass_events
from redraft.engine.request import Request
from redraft.engine.sequence import Frozen, Sequence
from redraft.types import CanvasEvent, Completion


class Answer:
    """choices: one sequence each. over: nothing more comes of it. submitted: seconds of the engine's clock."""

    def __init__(self, request: Request, choices: list[Sequence], submitted: float) -> None:
        self.request = request
        self.choices = choices
        self.over = False
        self._submitted = submitted

    def stepped(self, sequence: Sequence, change: Change) -> list[CanvasEvent]:
        """A step whose blocks stay as they are for now: that of the open block, or those that a pass has changed."""
        request, choice, canvas = self.request.id, sequence.choice, sequence.run.canvas
        if sequence.editing:
            return pass_events(request, choice, sequence.window.canvases, canvas, change)
        return [canvas_event(request, choice, canvas, change)]

    def frozen(self, sequence: Sequence, blocks: list[Frozen], change: Change, now: float) -> list[CanvasEvent]:
        """Blocks are frozen, by a step that made this change in the first of them. The last one of the last choice
        brings the completion."""
        stats = sequence.stats
        if blocks and not stats.seconds_to_first_block:
            stats.seconds_to_first_block = now - self._submitted
        if sequence.ending.reason is not None:
            stats.seconds = now - self._submitted
            self.over = all(choice.ending.reason is not None for choice in self.choices)
        return [
            canvas_event(
                self.request.id,
                sequence.choice,
                block.canvas,
                change if block is blocks[0] else Change(),
                frozen=True,
                text=block.text,
                completion=self._completion() if self.over and block is blocks[-1] else None,
            )
            for block in blocks
        ]

    def abort(self, now: float) -> list[CanvasEvent]:
        """Ends all choices that haven't ended; the last of the events, one for each, brings the completion."""
        self.over = True
        ended = [(choice, choice.ending.abort()) for choice in self.choices if choice.ending.reason is None]
        for choice, _ in ended:
            choice.stats.seconds = now - self._submitted
        return [
            canvas_event(
                self.request.id,
                choice.choice,
                choice.last,
                Change(),
                text=text,
                completion=self._completion() if choice is ended[-1][0] else None,
            )
            for choice, text in ended
        ]

    def _completion(self) -> Completion:
        return Completion(list(self.request.prompt), [choice.answer() for choice in self.choices])
