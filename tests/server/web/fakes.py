"""A server as the playground sees one: its files, and answers that follow a script at the test's pace."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from redraft.server.pages import STRICT, WEB

TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
BLOCK = 32
EOS = 1
SURE = (0.99, 0.97, 0.52, 0.999, 0.93, 0.98, 0.81, 0.995, 0.99, 0.68, 0.97)


class FakeServer(ThreadingHTTPServer):
    """answer: the text of every answer. key: what requests must bring. refusal: (status, message) of every answer.
    cut: streams end after their first message. loading: the model is not there yet. modes: besides the three.
    pause: seconds between messages. seen: the bodies of requests. gone: set when a reader has left before the end."""

    daemon_threads = True

    def __init__(self, answer: str = "Max has 5 apples.") -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.answer = answer
        self.key = ""
        self.refusal: tuple[int, str] | None = None
        self.cut = self.loading = False
        self.modes: dict[str, dict[str, Any]] = {}
        self.pause = 0.0
        self._allowed: int | None = None
        self._changed = threading.Condition()
        self.seen: list[dict[str, Any]] = []
        self.gone = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/"

    def __enter__(self) -> FakeServer:
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()
        self.shutdown()
        self.server_close()

    def hold(self) -> None:
        """Streams wait for `step` from their first message on."""
        self._allow(0)

    def step(self, count: int = 1) -> None:
        """Lets every stream send so many messages more, those too that are yet to come."""
        self._allow((self._allowed or 0) + count)

    def release(self) -> None:
        self._allow(None)

    def wait(self, number: int) -> None:
        """Returns when a stream may send its message of this number."""
        with self._changed:
            self._changed.wait_for(lambda: self._allowed is None or number < self._allowed)

    def _allow(self, count: int | None) -> None:
        with self._changed:
            self._allowed = count
            self._changed.notify_all()


class Handler(BaseHTTPRequestHandler):
    server: FakeServer

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        if self.path == "/v1/models":
            if self.allowed():
                own = {"version": "0.1.0", "special_ids": [0, EOS], "modes": self.server.modes}
                card = {"id": "redraft-fake", "redraft": own}
                self.reply(200, {"object": "list", "data": [card]})
            return
        if self.path == "/ready":
            if self.server.loading:
                return self.reply(503, {"error": {"message": "the model is being loaded"}})
            return self.reply(200, {"status": "ready"})
        name = "index.html" if self.path == "/" else self.path.removeprefix("/")
        file = WEB / name
        if not file.is_file():
            return self.reply(404, {"error": {"message": f"no {self.path}"}})
        self.send_response(200)
        self.send_header("Content-Type", TYPES[file.suffix])
        self.send_header("Content-Security-Policy", STRICT)
        self.end_headers()
        self.wfile.write(file.read_bytes())

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if not self.allowed():
            return
        self.server.seen.append(body)
        if self.server.refusal:
            status, message = self.server.refusal
            return self.reply(status, {"error": {"message": message}})
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        try:
            for number, message in enumerate(stream(self.server.answer)):
                self.server.wait(number)
                time.sleep(self.server.pause)
                self.wfile.write(message.encode())
                self.wfile.flush()
                if self.server.cut:
                    return
        except OSError:
            self.server.gone.set()

    def allowed(self) -> bool:
        if not self.server.key or self.headers.get("Authorization") == f"Bearer {self.server.key}":
            return True
        self.reply(401, {"error": {"message": "This server wants an API key."}})
        return False

    def reply(self, status: int, record: dict[str, Any]) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        if status == 429:
            self.send_header("Retry-After", "7")
        self.end_headers()
        self.wfile.write(json.dumps(record).encode())


def stream(answer: str) -> Iterator[str]:
    """The messages of an answer: canvas events, text, finish, usage."""
    forwards = edits = 0
    tokens = pieces(answer)
    yield message({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}]})
    for event in steps(tokens):
        forwards += 1
        edits += len(event["edited"])
        yield f"event: canvas\ndata: {json.dumps(event)}\n\n"
        if event["text"]:
            yield message({"choices": [{"index": 0, "delta": {"content": event["text"]}, "finish_reason": None}]})
    yield message({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
    usage = {
        "prompt_tokens": 9,
        "completion_tokens": len(tokens) + 1,
        "redraft": {"forwards": forwards, "edits": edits, "tokens_per_forward": (len(tokens) + 1) / forwards},
    }
    yield message({"choices": [], "usage": usage})
    yield "data: [DONE]\n\n"


def message(record: dict[str, Any]) -> str:
    return f"data: {json.dumps(record)}\n\n"


def pieces(text: str) -> list[str]:
    return re.findall(r"\w+| |\n|[^\w ]", text)


def steps(tokens: list[str]) -> Iterator[dict[str, Any]]:
    """Each block is drafted in two steps, its first word wrongly; that is edited, and the block frozen. The first two
    positions of the first block are the prompt's."""
    wanted = [["Question", ":", *tokens][i : i + BLOCK] for i in range(0, len(tokens) + 3, BLOCK)]
    seconds = 0.0
    for block, words in enumerate(wanted):
        texts = words + ["<|end|>"] * (BLOCK - len(words))
        prompt = [0, 1] if block == 0 else []
        first, wrong = len(prompt), "Wrong"
        own = range(first, BLOCK)
        late = [i for i in own if i % 3 == 2 and i != first]
        early = [i for i in own if i % 3 != 2 and i != first]
        sure = [1.0 if i in prompt else SURE[(i * 7) % len(SURE)] for i in range(BLOCK)]
        drafts: list[dict[str, Any]] = [
            {
                "masked": late,
                "drafted": [first, *early],
                "texts": [texts[i] if i != first else wrong for i in range(32)],
            },
            {"drafted": late, "texts": [texts[i] if i != first else wrong for i in range(32)]},
            {"edited": {str(first): [wrong, texts[first]]}},
            {"frozen": True, "text": "".join(words[first:])},
        ]
        for number, change in enumerate(drafts):
            seconds += 0.05
            event = {
                "choice": 0,
                "step": number + 1,
                "block": block,
                "ids": [EOS if text == "<|end|>" else 2 + len(text) for text in texts],
                "texts": texts,
                "confidence": sure,
                "masked": [],
                "drafted": [],
                "edited": {},
                "deleted": [],
                "inserted": [],
                "prompt": prompt,
                "frozen": False,
                "text": "",
                "time": round(seconds, 3),
            }
            yield event | change
