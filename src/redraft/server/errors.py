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
UNSUPPORTED = "unsupported"  # what pydantic finds when a field of OpenAI's asks for what isn't done
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
        case HTTPException():  # the framework's own, such as a body that breaks off
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


def of_route(error: Exception, method: str, path: str) -> ApiError:
    """Of an error that came up on the way to a route or in it: where there is none for the request, that is said."""
    told = of(error)
    if isinstance(error, HTTPException) and told is not error:
        path = path if len(path) <= 80 else f"{path[:77]}..."
        if error.status_code == 404:
            return ApiError(404, f"there is no {method} {path}; /docs lists what there is")
        if error.status_code == 405:
            allowed = (error.headers or {}).get("Allow", "")
            told = ApiError(405, f"{path} takes {allowed}, not {method}")
            told.headers = {"Allow": allowed}
    return told


def of_validation(problems: Sequence[Mapping[str, Any]], body: Any) -> ApiError:
    """Of what pydantic found in a body: of several findings one that says more than that a type is another."""
    problem = max(problems, key=_weight)
    name = _place(problem["loc"], body, absent=problem["type"] == "missing")
    if problem["type"] == UNSUPPORTED:
        return unsupported(f"{name}.{problem['ctx']['name']}".removeprefix("."), problem["ctx"]["why"])
    if problem["type"] == "extra_forbidden":
        return ApiError(400, f"{name} is not a field of this request", param=name, code="unknown_parameter")
    if problem["type"] == "json_invalid":
        return invalid(f"the body is not JSON: {problem.get('ctx', {}).get('error', problem['msg'])}")
    if not name:
        return invalid("the body must be a JSON object, sent with the header Content-Type: application/json")
    message = problem["msg"].removeprefix("Value error, ")
    got = "nothing" if problem["type"] == "missing" else _short(problem.get("input"))
    return invalid(f"{name}: {message}, got {got}", name)


def _weight(problem: Mapping[str, Any]) -> tuple[int, int]:
    kind = problem["type"]
    return 2 if kind in (UNSUPPORTED, "extra_forbidden") else int(not kind.endswith("_type")), len(problem["loc"])


def _place(path: Sequence[str | int], body: Any, *, absent: bool) -> str:
    """The path to a field as one writes it. pydantic's has the names of types in it too, which are nowhere in the
    body. absent: its last part isn't there either."""
    name, here, last = "", body, len(path) - 1 if absent else -1
    for index, part in enumerate(path):
        if isinstance(part, int) and isinstance(here, list):
            name += f"[{part}]"
            here = here[part]
        elif isinstance(part, str) and isinstance(here, dict) and (part in here or index == last):
            name += f".{part}"
            here = here.get(part)
    return name.removeprefix(".")


def _short(value: Any) -> str:
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # an integer of more digits than Python writes, or lists in lists
        return f"a {type(value).__name__}"
    return text if len(text) <= 80 else f"{text[:77]}..."
