"""The items of a response while they are written: contents and calls in, events of the stream out."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from redraft.server.shapes import new_id
from redraft.server.tools import Call

Event = dict[str, Any]


class Writer:
    """items: those of `output`, as they stand. What it yields are events without their sequence numbers."""

    def __init__(self) -> None:
        self.items: list[dict[str, Any]] = []
        self._open = False  # the last item is a message that goes on

    def write(self, part: str | Call) -> Iterable[Event]:
        if isinstance(part, Call):
            yield from self._finish_message([])
            yield from self._call(part)
            return
        if not self._open:
            yield from self._begin_message()
        self._content["text"] += part
        yield self._inside("response.output_text.delta", delta=part, logprobs=[])

    def finish(self, logprobs: list[dict[str, Any]], *, whole: bool) -> Iterable[Event]:
        """The end of the answer, which has a message if it has nothing else. whole: it wasn't cut."""
        if not self.items:
            yield from self._begin_message()
        yield from self._finish_message(logprobs, "completed" if whole else "incomplete")

    @property
    def _content(self) -> dict[str, Any]:
        return self.items[-1]["content"][0]

    def _begin_message(self) -> Iterable[Event]:
        item: dict[str, Any] = {"id": new_id("msg_"), "type": "message", "status": "in_progress", "role": "assistant"}
        self.items.append(item | {"content": []})
        yield self._item("response.output_item.added")
        self.items[-1]["content"].append({"type": "output_text", "text": "", "annotations": [], "logprobs": []})
        self._open = True
        yield self._inside("response.content_part.added", part=dict(self._content))

    def _finish_message(self, logprobs: list[dict[str, Any]], status: str = "completed") -> Iterable[Event]:
        if not self._open:
            return
        self._open = False
        self._content["logprobs"] = logprobs
        yield self._inside("response.output_text.done", text=self._content["text"], logprobs=logprobs)
        yield self._inside("response.content_part.done", part=dict(self._content))
        self.items[-1]["status"] = status
        yield self._item("response.output_item.done")

    def _call(self, call: Call) -> Iterable[Event]:
        item = {"id": new_id("fc_"), "type": "function_call", "status": "in_progress", "call_id": call.id}
        self.items.append(item | {"name": call.name, "arguments": ""})
        yield self._item("response.output_item.added")
        at = {"item_id": item["id"], "output_index": len(self.items) - 1}
        yield {"type": "response.function_call_arguments.delta", **at, "delta": call.arguments}
        self.items[-1] |= {"arguments": call.arguments, "status": "completed"}
        done = {"type": "response.function_call_arguments.done", **at, "name": call.name}
        yield done | {"arguments": call.arguments}
        yield self._item("response.output_item.done")

    def _item(self, kind: str) -> Event:
        item = self.items[-1]
        shown = item | {"content": [dict(part) for part in item["content"]]} if "content" in item else dict(item)
        return {"type": kind, "output_index": len(self.items) - 1, "item": shown}

    def _inside(self, kind: str, **more: Any) -> Event:
        at = {"item_id": self.items[-1]["id"], "output_index": len(self.items) - 1, "content_index": 0}
        return {"type": kind, **at, **more}
