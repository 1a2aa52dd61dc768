"""A server of Redraft as `redraft chat --url` uses it: conversations in, frames out."""

from __future__ import annotations

import json
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from redraft.cli.frames import Finish, Frame
from redraft.errors import InvalidInput, RemoteError

if TYPE_CHECKING:
    import httpx2

# Settings that OpenAI's protocol has at the top of a request; all others stand under "redraft".
PLAIN_FIELDS = frozenset(
    ["max_tokens", "temperature", "top_p", "seed", "stop", "logit_bias", "presence_penalty", "frequency_penalty"]
)
CONNECT_SECONDS = 10.0


@dataclass(frozen=True)
class RemoteSession:
    """url: where the server's page is. model: the name that the server gives. special_ids: its control tokens.
    modes: what names of modes stand for, besides the built-in ones."""

    url: str
    client: httpx2.Client
    model: str
    special_ids: frozenset[int] = field(default_factory=frozenset)
    modes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @classmethod
    def connect(cls, url: str, key: str | None = None, transport: httpx2.BaseTransport | None = None) -> RemoteSession:
        """Asks the server for its model. url: with or without the `/v1` of the API. transport: another way to it than
        the network. Raises InvalidInput for what is no address, RemoteError when nobody answers or the key is wrong."""
        try:
            import httpx2
        except ImportError as error:
            raise InvalidInput("--url needs httpx2: pip install 'redraft[serve]'") from error
        base = url.rstrip("/").removesuffix("/v1")
        if not _is_address(base):
            raise InvalidInput(f"url must be an address such as http://127.0.0.1:8000, got {url!r}")
        # That nobody is there must show soon; a step may take long.
        timeout = httpx2.Timeout(None, connect=CONNECT_SECONDS)
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        client = httpx2.Client(base_url=f"{base}/v1/", headers=headers, timeout=timeout, transport=transport)
        with _explained(base):
            response = client.get("models")
        if not response.is_success:
            raise _refusal(base, response)
        with _understood(base):
            card = response.json()["data"][0]
            own = card.get("redraft", {})
            special, modes = own.get("special_ids", []), dict(own.get("modes", {}))
            return cls(base, client, str(card["id"]), frozenset(map(int, special)), modes)

    def reply(self, messages: Sequence[Mapping[str, str]], given: Mapping[str, Any]) -> Generator[Frame]:
        """Frames of the answer to a conversation as they arrive; the last one has `finish`. given: settings by the
        names of SamplingParams; for the others the server's defaults hold. Raises RemoteError."""
        import httpx2

        body = {"model": self.model, "messages": list(messages), "stream": True}
        body |= {"stream_options": {"include_usage": True}, **fields(given)}
        with _explained(self.url), self.client.stream("POST", "chat/completions", json=body) as response:
            if not response.is_success:
                response.read()
                raise _refusal(self.url, response)
            messages_of_stream = ((event.event, event.data) for event in httpx2.EventSource(response))
            try:
                with _understood(self.url):
                    yield from frames(messages_of_stream, self.url)
            except httpx2.TransportError as error:
                raise RemoteError(f"{self.url} broke off in the middle of the answer: {error}") from error


def fields(given: Mapping[str, Any]) -> dict[str, Any]:
    """Settings as the fields of a request that asks for canvas events."""
    body: dict[str, Any] = {name: value for name, value in given.items() if name in PLAIN_FIELDS}
    own = {name: value for name, value in given.items() if name not in PLAIN_FIELDS}
    return body | {"redraft": {"events": True, **own}}


def frames(stream: Iterable[tuple[str, str]], url: str) -> Iterator[Frame]:
    """Frames of an event stream, given as (event, data). The last one gets what the last chunks say.

    A frame that freezes its block waits for what comes next, since the end of the answer belongs to it.
    """
    held: Frame | None = None
    last: Frame | None = None
    reason: str | None = None
    usage: dict[str, Any] | None = None
    for kind, data in stream:
        if data == "[DONE]":
            break
        record = json.loads(data)
        if kind == "canvas":
            if held is not None:
                yield held
            last = _frame(record)
            held = last if last.frozen else None
            if held is None:
                yield last
        elif "error" in record:
            raise RemoteError(f"{url}: {record['error']['message']}")
        else:
            usage = record.get("usage") or usage
            for choice in record["choices"]:
                reason = choice.get("finish_reason") or reason
    else:
        raise RemoteError(f"{url} broke off in the middle of the answer")
    if last is None or reason is None or usage is None:
        raise RemoteError(f"{url} sent an answer without canvas events or usage; is it `redraft serve`?")
    end = held or replace(last, drafted=frozenset(), edited={}, deleted=0, inserted=0, text_delta="")
    yield replace(end, finish=_finish(reason, usage, last.seconds))


def _frame(record: dict[str, Any]) -> Frame:
    return Frame.from_json(
        {
            **{name: record[name] for name in ("step", "block", "texts", "confidence", "masked", "drafted", "prompt")},
            "tokens": record["ids"],
            "seconds": record["time"],
            "edited": {position: old for position, (old, _) in record["edited"].items()},
            "deleted": len(record["deleted"]),
            "inserted": len(record["inserted"]),
            "frozen": record["frozen"],
            "text_delta": record["text"],
        }
    )


def _finish(reason: str, usage: dict[str, Any], seconds: float) -> Finish:
    return Finish(
        reason=reason,
        tokens=usage["completion_tokens"],
        forwards=usage["redraft"]["forwards"],
        edits=usage["redraft"]["edits"],
        prompt_tokens=usage["prompt_tokens"],
        seconds=seconds,
    )


def _is_address(text: str) -> bool:
    import httpx2

    try:
        url = httpx2.URL(text)
    except httpx2.InvalidURL:
        return False
    return url.scheme in ("http", "https") and bool(url.host)


def _refusal(url: str, response: httpx2.Response) -> RemoteError:
    """What a response that is no success says, in one line."""
    try:
        said = str(response.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        said = response.text.strip()[:200] or response.reason_phrase
    hint = "; --key or REDRAFT_API_KEY sends one" if response.status_code == 401 else ""
    return RemoteError(f"{url} answered {response.status_code}: {said}{hint}")


@contextmanager
def _explained(url: str) -> Iterator[None]:
    """Faults of the connection as a RemoteError."""
    import httpx2

    try:
        yield
    except httpx2.ConnectError as error:
        raise RemoteError(f"cannot talk to {url}: {error}; is `redraft serve` running there?") from error
    except httpx2.HTTPError as error:
        raise RemoteError(f"cannot talk to {url}: {error or type(error).__name__}") from error


@contextmanager
def _understood(url: str) -> Iterator[None]:
    """Messages that aren't what the protocol says as a RemoteError."""
    try:
        yield
    except (InvalidInput, ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
        raise RemoteError(f"{url} sent what is no answer of `redraft serve` ({error!r})") from error
