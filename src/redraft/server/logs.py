"""The log on standard error: one JSON object a line, or plain lines in a terminal. What was asked and answered isn't in
it, unless `log_prompts`."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime

log = logging.getLogger("redraft.server")
OWN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "color_message", "taskName"}


class JsonFormatter(logging.Formatter):
    """The message and everything given by `extra`. Names that begin with _ are of libraries that mark every record."""

    def format(self, record: logging.LogRecord) -> str:
        entry = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "message": record.getMessage(),
        }
        entry |= {name: value for name, value in vars(record).items() if name not in OWN and name[0] != "_"}
        if record.exc_info:
            entry["traceback"] = self.formatException(record.exc_info)
        return json.dumps(entry, default=str)


class PlainFormatter(logging.Formatter):
    """For somebody who sits before a terminal: the message, and of a request what matters."""

    def format(self, record: logging.LogRecord) -> str:
        line = f"{datetime.fromtimestamp(record.created):%H:%M:%S} {record.getMessage()}"
        found = [str(vars(record)[name]) for name in ("method", "path", "status", "seconds") if name in vars(record)]
        text = " ".join([line, *found]) + (" s" if "seconds" in vars(record) else "")
        return f"{text}\n{self.formatException(record.exc_info)}" if record.exc_info else text


def start_logging(level: str = "INFO") -> None:
    """Sends the server's log, and uvicorn's warnings, to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(PlainFormatter() if sys.stderr.isatty() else JsonFormatter())
    for name, least in (("redraft.server", level), ("uvicorn.error", "WARNING")):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(least)
