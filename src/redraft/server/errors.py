"""Errors as OpenAI's clients read them: `{"error": {"message", "type", "param", "code"}}` under a fitting status.

400 what was asked can't be          413 the body is too large
401 no valid key                     429 too much at once; Retry-After says when to come back
404 no such model, response, route   500 a bug
405 no such method                   503 loading, stopping, or the engine is gone
408 the request came too slowly      504 the answer took too long
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from starlette.exceptions import HTTPException

from redraft.errors import ContextLengthError, InvalidInput, QueueFull, RedraftError, TemplateError

RETRY_SECONDS = 1
TYPES = {
    401: "authentication_error",
    404: "not_found_error",
    408: "timeout_error",
    429: "rate_limit_error",
    500: "server_error",
    503: "service_unavailable_error",
    504: "timeout_error",
}


class ApiError(HTTPException):
    """What a client is told. param: the field that is at fault. code: for programs."""

    def __init__(self, status: int, message: str, *, param: str | None = None, code: str | None = None) -> None:
        headers = {"Retry-After": str(RETRY_SECONDS)} if status in (429, 503) else {}
        headers |= {"WWW-Authenticate": "Bearer"} if status == 401 else {}
        super().__init__(status, message, headers)
        self.status, self.message, self.param, self.code = status, message, param, code

    def body(self) -> dict[str, Any]:
        kind = TYPES.get(self.status, "invalid_request_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}


def invalid(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    return ApiError(400, message, param=param, code=code)


def unsupported(param: str, why: str) -> ApiError:
    """A field, or a value of one, that OpenAI's API knows and this server doesn't do."""
    return ApiError(400, f"{param} is not supported: {why}", param=param, code="unsupported_parameter")


def of(error: Exception) -> ApiError:
    """Of any error; one that nobody raised on purpose is a bug, whose text stays in the log."""
    match error:
        case ApiError():
            return error
        case HTTPException():  # the framework's own: no such route, no such method, a body that breaks off
            return ApiError(error.status_code, str(error.detail))
        case ContextLengthError():
            return invalid(str(error), code="context_length_exceeded")
        case TemplateError():
            return invalid(f"the messages can't be rendered: {error}", "messages", "template_error")
        case InvalidInput():
            return invalid(str(error))
        case QueueFull():
            return ApiError(429, str(error), code="queue_full")
        case RedraftError():
            return ApiError(503, str(error), code="engine_error")
    return ApiError(500, "the server has failed at this request; its log says how", code="internal_error")


def of_validation(problems: Sequence[Mapping[str, Any]]) -> ApiError:
    """Of what pydantic found, by its first finding."""
    problem = problems[0]
    path = [part for part in problem["loc"] if part != "body"]
    name = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).removeprefix(".")
    if problem["type"] == "extra_forbidden":
        return ApiError(400, f"{name} is not a field of this request", param=name, code="unknown_parameter")
    if problem["type"] == "json_invalid":
        return invalid(f"the body is not JSON: {problem.get('ctx', {}).get('error', problem['msg'])}")
    message = problem["msg"].removeprefix("Value error, ")
    if not name:
        return invalid(f"the body must be a JSON object, sent as application/json: {message}")
    return invalid(f"{name}: {message}, got {_short(problem.get('input'))}", name)


def _short(value: Any) -> str:
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # an integer of more digits than Python writes, or lists in lists
        return f"a {type(value).__name__}"
    return text if len(text) <= 80 else f"{text[:77]}..."
