"""Items answered by a server over HTTP: `redraft serve`, or any other that speaks OpenAI's chat completions."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from redraft.errors import InvalidInput, RemoteError
from redraft.eval.answer import Answer, shared
from redraft.eval.records import Edit
from redraft.eval.settings import AS_SERVED, Setting
from redraft.eval.task import Item

if TYPE_CHECKING:
    import httpx2

CONNECT_SECONDS = 10.0
BAD_REQUEST = 400


@dataclass(frozen=True)
class RemoteModel:
    """url: the server's address without `/v1`. name: what it calls the model. ours: it is a `redraft serve`, which
    takes settings and tells forwards and edits; of another one only the setting "as-served" can be asked for.
    concurrency: requests at a time. traced: the answers of ours come with their edits."""

    url: str
    client: httpx2.Client
    name: str
    ours: bool
    concurrency: int = 1
    traced: bool = True

    block_length = None

    @classmethod
    def connect(
        cls,
        url: str,
        *,
        key: str | None = None,
        name: str | None = None,
        concurrency: int = 1,
        traced: bool = True,
        transport: httpx2.BaseTransport | None = None,
    ) -> RemoteModel:
        """Asks the server for its models. name: which of them; None takes the first. transport: another way to it than
        the network. Raises InvalidInput for what is no address, RemoteError when nobody answers or the key is wrong."""
        try:
            import httpx2
        except ImportError as error:
            raise InvalidInput("--url needs httpx2: pip install 'redraft[serve]'") from error
        base = url.rstrip("/").removesuffix("/v1")
        try:
            parts = httpx2.URL(base)
        except httpx2.InvalidURL:
            parts = httpx2.URL("")
        if parts.scheme not in ("http", "https") or not parts.host:
            raise InvalidInput(f"url must be an address such as http://127.0.0.1:8000, got {url!r}")
        client = httpx2.Client(
            base_url=f"{base}/v1/",
            headers={} if key is None else {"Authorization": f"Bearer {key}"},
            timeout=httpx2.Timeout(None, connect=CONNECT_SECONDS),
            limits=httpx2.Limits(max_connections=concurrency),
            transport=transport,
        )
        with _explained(base):
            response = client.get("models")
            if not response.is_success:
                raise RemoteError(f"{base} answered {response.status_code}: {_said(response)}")
            cards = {str(card["id"]): card for card in response.json()["data"]}
            if name is not None and name not in cards:
                raise InvalidInput(f"model must be one of {', '.join(cards)} at {base}, got {name!r}")
            chosen = name or next(iter(cards))
            return cls(base, client, chosen, "redraft" in cards[chosen], concurrency, traced)

    @property
    def identity(self) -> str:
        return f"{self.name} at {self.url}"

    def answer(self, items: Sequence[Item], setting: Setting) -> list[Answer]:
        """Raises RemoteError when the server is gone or fails; a prompt that it refuses (400) is an answer's error."""
        if not self.ours and setting != AS_SERVED:
            raise InvalidInput(
                f"{self.url} is no `redraft serve` and takes no thresholds; settings must be as-served, "
                f"got {setting.key}"
            )
        began = time.perf_counter()
        pool = ThreadPoolExecutor(self.concurrency)
        try:
            answers = list(pool.map(lambda item: self._one(item, setting), items))
        finally:
            pool.shutdown(cancel_futures=True)  # after Ctrl-C only what is under way is waited for
        wall = time.perf_counter() - began
        return answers if len(answers) == 1 else shared(answers, wall)

    def _one(self, item: Item, setting: Setting) -> Answer:
        body: dict[str, Any] = {"model": self.name, "messages": item.messages, "max_tokens": item.max_tokens}
        body |= {"temperature": 0.0} | ({"tools": item.tools} if item.tools else {})
        if self.ours:
            body |= {"stream": True, "redraft": {"events": True, **setting.fields}}
        began = time.perf_counter()
        with _explained(self.url), self.client.stream("POST", "chat/completions", json=body) as response:
            if response.status_code == BAD_REQUEST:
                response.read()
                return Answer(error=f"refused: {_said(response)}")
            if not response.is_success:
                response.read()
                raise RemoteError(f"{self.url} answered {response.status_code}: {_said(response)}")
            if self.ours:
                import httpx2

                answer = read_stream(((e.event, e.data) for e in httpx2.EventSource(response)), began)
                return answer if self.traced else replace(answer, trace=())
            response.read()
            return read_whole(response.json(), began)


def read_whole(body: dict[str, Any], began: float) -> Answer:
    """The answer of a server that isn't ours: what it cost in forwards is not known."""
    choice, seconds = body["choices"][0], time.perf_counter() - began
    usage = body.get("usage") or {}
    return Answer(
        text=written(choice["message"]),
        tokens=int(usage.get("completion_tokens", 0)),
        seconds=seconds,
        first_block_seconds=seconds,
        finish_reason=str(choice.get("finish_reason")),
    )


def read_stream(stream: Iterable[tuple[str, str]], began: float) -> Answer:
    """The answer that an event stream of `redraft serve` tells, given as (event, data). Raises RemoteError."""
    trace: list[Edit] = []
    parts: list[str] = []
    first, reason, usage = 0.0, "", {}
    for kind, data in stream:
        if data == "[DONE]":
            break
        record = json.loads(data)
        if kind == "canvas":  # its text is what the model wrote, before calls of tools are read out of it
            parts.append(record["text"])
            first = first or (record["time"] if record["frozen"] else 0.0)
            edited = sorted((int(place), *change) for place, change in record["edited"].items())
            trace += [(record["step"], record["block"], place, old, new) for place, old, new in edited]
        elif "error" in record:
            raise RemoteError(str(record["error"]["message"]))
        else:
            usage = record.get("usage") or usage
            for choice in record["choices"]:
                reason = choice.get("finish_reason") or reason
    else:
        raise RemoteError("the stream broke off in the middle of the answer")
    own = usage["redraft"]
    return Answer(
        text="".join(parts),
        tokens=usage["completion_tokens"],
        forwards=int(own["forwards"]),
        edits=int(own["edits"]),
        seconds=time.perf_counter() - began,
        first_block_seconds=first,
        finish_reason=reason,
        trace=tuple(trace),
    )


def written(message: dict[str, Any]) -> str:
    """Content and tool calls of a message as one text, the calls in the form in which templates write them."""
    calls = [_call(call["function"]) for call in message.get("tool_calls") or ()]
    return (message.get("content") or "") + "".join(f"<tool_call>\n{call}\n</tool_call>" for call in calls)


def _call(function: dict[str, Any]) -> str:
    # The arguments stay the text that they are: what is no JSON is for the grader to judge.
    return f'{{"name": {json.dumps(function["name"])}, "arguments": {function["arguments"]}}}'


def _said(response: httpx2.Response) -> str:
    """What a response that is no success says, in one line."""
    try:
        return str(response.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return response.text.strip()[:200] or response.reason_phrase


@contextmanager
def _explained(url: str) -> Iterator[None]:
    """Faults of the connection, and what isn't as the protocol says, as a RemoteError."""
    import httpx2

    try:
        yield
    except httpx2.HTTPError as error:
        raise RemoteError(f"cannot talk to {url}: {error or type(error).__name__}") from error
    except (InvalidInput, RemoteError):
        raise
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, StopIteration) as error:
        raise RemoteError(f"{url} sent what is no answer of a chat ({error!r})") from error
