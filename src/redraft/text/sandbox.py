"""Jinja for templates that came with somebody's checkpoint: no access to Python, and bounded work.

Jinja's own sandbox (`ImmutableSandboxedEnvironment`) keeps a template away from Python's internals but lets it
run for ever or fill the memory: nested loops, macros that call themselves twice, `'x' * 10**12`, `x ~ x` in a
loop. Three rules together bound a rendering here:

1. Only known filters, string methods and functions may be used: those whose result is about as large as their
   input. The few that can multiply (`*`, `**`, `%`, `replace`, `join`, `format`, `indent`) are checked *before*
   they run.
2. Whatever a template keeps or prints (`set`, `~`, arguments and results of calls, results of filters and
   operators, the output) is measured with everything inside it, and may not be larger than `MAX_SIZE`.
3. Loops, macros, calls, filters and operators, each now bounded in itself, pass a meter with a limit of steps and
   a deadline of wall time.

The dialect is the one that transformers' chat templates use: `trim_blocks`, `lstrip_blocks`, loop controls,
`{% generation %}`, `tojson` without HTML escapes, `raise_exception`, `strftime_now`.
"""

from __future__ import annotations

import functools
import json
import operator
import re
import time
from collections.abc import Callable, Iterable, Mapping
from contextvars import ContextVar
from datetime import datetime
from typing import Any, ClassVar

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from redraft.errors import TemplateError

MAX_SOURCE = 1 << 17  # characters of a template
MAX_SIZE = 1 << 22  # characters and elements that one value, or the output, may hold
MAX_STEPS = 1_000_000
MAX_SECONDS = 5.0
MAX_WIDTH = 32  # of an indent, in characters
MAX_EXPONENT_BITS = 256


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


FILTERS = _words(
    "abs attr capitalize count d default dictsort e escape first float format groupby indent int items join last "
    "length list lower map max min reject rejectattr replace reverse round safe select selectattr sort string title "
    "tojson trim unique upper wordcount"
)
PRINTING = frozenset(["join", "string", "tojson", "format"])  # filters that write out all that a value holds
STRING_METHODS = _words(
    "capitalize count endswith find format format_map index isalnum isalpha isdecimal isdigit islower isnumeric "
    "isspace istitle isupper join lower lstrip partition removeprefix removesuffix replace rfind rindex rpartition "
    "rsplit rstrip split splitlines startswith strip swapcase title upper"
)
WIDE_FORMAT = re.compile(r"%[^a-zA-Z%]*(?:\d{4,}|\*)|[{:][^}]*\d{4,}|:[^}]*\{")


class LimitExceeded(jinja2.exceptions.SecurityError):
    """A template asked for more work or memory than a rendering may take."""


class _Meter:
    __slots__ = ("deadline", "steps")

    def __init__(self) -> None:
        self.steps = 0
        self.deadline = time.monotonic() + MAX_SECONDS

    def step(self) -> None:
        self.steps += 1
        if self.steps > MAX_STEPS:
            raise LimitExceeded(f"more than {MAX_STEPS:,} steps")
        if time.monotonic() > self.deadline:
            raise LimitExceeded(f"more than {MAX_SECONDS:g} seconds")


_meter: ContextVar[_Meter] = ContextVar("template_meter")


def _step() -> None:
    """Counts one step; while a template is being compiled (constant folding) there is no meter, and no folding."""
    meter = _meter.get(None)
    if meter is None:
        raise nodes.Impossible
    meter.step()


def _measured(value: Any) -> Any:
    """`value`, if it and all it holds (a value held twice counts twice, as it would print) is within `MAX_SIZE`."""
    size, stack = 0, [value]
    while stack:
        item = stack.pop()
        if isinstance(item, (str, bytes)):
            size += len(item) + 1
        elif isinstance(item, Mapping):
            size += len(item) + 1
            stack.extend(item.keys())
            stack.extend(item.values())
        elif isinstance(item, (list, tuple, set, frozenset)):
            size += len(item) + 1
            stack.extend(item)
        elif isinstance(item, Namespace):
            size += 1
            stack.append(object.__getattribute__(item, "_Namespace__attrs"))
        elif isinstance(item, int) and item.bit_length() > 64 * MAX_EXPONENT_BITS:
            raise LimitExceeded("a number is too large")
        else:
            size += 1
        if size > MAX_SIZE:
            raise LimitExceeded(f"a value is larger than {MAX_SIZE:,}")
    return value


def _check_format(text: Any) -> None:
    if isinstance(text, str) and WIDE_FORMAT.search(text):
        raise LimitExceeded(f"the format {text[:40]!r} has too wide a field")


def _check_growth(name: str, subject: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Refuses, before it runs, a filter or string method whose result would be larger than `MAX_SIZE`."""
    given = [*args, *kwargs.values()]
    if name == "replace" and isinstance(subject, str) and len(given) >= 2:
        old, new = str(given[0]), str(given[1])
        if subject.count(old) * len(new) > MAX_SIZE:
            raise LimitExceeded(f"replace would give more than {MAX_SIZE:,} characters")
    elif name == "join":
        separator, parts = (subject, given[0]) if isinstance(subject, str) and given else ("", subject)
        longest = max([len(separator), *(len(value) for value in given if isinstance(value, str))])
        if isinstance(parts, (str, list, tuple)) and len(parts) * longest > MAX_SIZE:
            raise LimitExceeded(f"join would give more than {MAX_SIZE:,} characters")
    elif name in ("format", "format_map"):
        _check_format(subject)
    elif name in ("indent", "tojson"):
        for width in given:
            if (isinstance(width, int) and width > MAX_WIDTH) or (isinstance(width, str) and len(width) > MAX_WIDTH):
                raise LimitExceeded(f"{name} is wider than {MAX_WIDTH} characters")


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: Any) -> None:
    raise jinja2.exceptions.TemplateError(str(message))


def _strftime_now(format: str) -> str:
    _check_format(format)
    return datetime.now().strftime(format[:100])


def _metered_filter(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    # functools.wraps keeps the attribute by which Jinja knows that a filter wants the context as first argument.
    wants_context = hasattr(function, "jinja_pass_arg")

    @functools.wraps(function)
    def metered(*args: Any, **kwargs: Any) -> Any:
        _step()
        subject, rest = (args[1], args[2:]) if wants_context else (args[0], args[1:])
        if name in PRINTING:
            _measured(subject)
        _check_growth(name, subject, rest, kwargs)
        return _measured(function(*args, **kwargs))

    return metered


def _tick(value: Any) -> Any:
    _step()
    return _measured(value)


def _concat(values: list[Any]) -> str:
    _step()
    return "".join(map(str, _measured(values)))


def _filtered(expression: nodes.Expr | None, name: str) -> nodes.Filter:
    lineno = 1 if expression is None else expression.lineno
    return nodes.Filter(expression, name, [], [], None, None, lineno=lineno)


def _meter_tree(tree: nodes.Template) -> nodes.Template:
    """Puts a meter into every loop and macro, and around every value that a template keeps or concatenates."""
    for node in list(tree.find_all((nodes.For, nodes.Macro, nodes.CallBlock))):
        node.body.insert(0, nodes.ExprStmt(_filtered(nodes.Const(None, lineno=node.lineno), "_tick")))
    for node in list(tree.find_all(nodes.Assign)):
        node.node = nodes.Filter(node.node, "_tick", [], [], None, None, lineno=node.lineno)
    for node in list(tree.find_all(nodes.AssignBlock)):
        node.filter = _filtered(node.filter, "_tick")
    for node in list(tree.find_all(nodes.Concat)):
        node.nodes = [_filtered(nodes.List(node.nodes, lineno=node.lineno), "_concat")]
    return tree


class _Generation(Extension):
    """`{% generation %}` marks what the model wrote; here it renders as its content."""

    tags: ClassVar[set[str]] = {"generation"}

    def parse(self, parser: Any) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Environment(ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset(["*", "**", "%", "+"])

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            optimized=False,  # constants are folded while compiling, where no meter runs
            finalize=_measured,
            extensions=[_Generation, "jinja2.ext.loopcontrols"],
        )
        kept = {name: function for name, function in self.filters.items() if name in FILTERS}
        kept["tojson"] = _tojson
        self.filters = {name: _metered_filter(name, function) for name, function in kept.items()}
        self.filters.update(_tick=_tick, _concat=_concat)
        self.globals = {name: self.globals[name] for name in ("range", "dict", "namespace")}
        self.globals.update(raise_exception=_raise_exception, strftime_now=_strftime_now)

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = _meter_tree(super()._parse(source, name, filename))
        tree.set_environment(self)
        return tree

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        _step()
        if operator == "*":
            sequence, count = (right, left) if isinstance(left, int) else (left, right)
            if isinstance(sequence, (str, list, tuple)) and len(sequence) * count > MAX_SIZE:
                raise LimitExceeded(f"a value is larger than {MAX_SIZE:,}")
        elif operator == "**" and isinstance(left, int) and isinstance(right, int):
            if left.bit_length() * abs(right) > MAX_EXPONENT_BITS:
                raise LimitExceeded("a number is too large")
        elif operator == "%":
            _check_format(left)
        return _measured(_BINARY[operator](left, right))

    def call(  # pyright: ignore[reportIncompatibleMethodOverride]  # Jinja's own names are mangled the same way
        self, context: Any, function: Any, /, *args: Any, **kwargs: Any
    ) -> Any:
        _step()
        method = getattr(function, "__wrapped__", function)  # Jinja wraps str.format in a function of its own
        subject = getattr(method, "__self__", None)
        if isinstance(subject, str):
            if method.__name__ not in STRING_METHODS:
                raise LimitExceeded(f"str.{method.__name__} isn't available in a chat template")
            _check_growth(method.__name__, subject, args, kwargs)
        elif isinstance(subject, (int, float, bytes)):
            raise LimitExceeded(f"{type(subject).__name__}.{method.__name__} isn't available in a chat template")
        _measured(args)
        _measured(kwargs)
        return _measured(super().call(context, function, *args, **kwargs))


_BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "*": operator.mul,
    "**": operator.pow,
    "%": operator.mod,
    "+": operator.add,
}


def _reason(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:300] if lines else type(error).__name__


class SandboxedTemplate:
    """A compiled template. Rendering is safe from several threads at once."""

    def __init__(self, source: str) -> None:
        """Raises TemplateError when the source isn't a template, or is longer than `MAX_SOURCE` characters."""
        if len(source) > MAX_SOURCE:
            raise TemplateError(f"chat template: {len(source):,} characters, at most {MAX_SOURCE:,} are taken")
        try:
            self._template = _ENVIRONMENT.from_string(source)
        except jinja2.exceptions.TemplateSyntaxError as error:
            raise TemplateError(f"chat template, line {error.lineno}: {_reason(error)}") from error
        except (jinja2.exceptions.TemplateError, RecursionError, SyntaxError, ValueError, MemoryError) as error:
            raise TemplateError(f"chat template: {_reason(error)}") from error

    def render(self, variables: Mapping[str, Any]) -> str:
        """The text; raises TemplateError when the template fails, raises itself, or goes over a limit."""
        token = _meter.set(_Meter())
        try:
            return "".join(_bounded(self._template.generate(**variables)))
        except (jinja2.exceptions.TemplateError, RecursionError, MemoryError) as error:
            raise TemplateError(f"chat template: {_reason(error)}") from error
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            # What a template's own expressions raise: a None that has no length, a key that isn't there.
            raise TemplateError(f"chat template: {type(error).__name__}: {_reason(error)}") from error
        finally:
            _meter.reset(token)


def _bounded(pieces: Iterable[str]) -> Iterable[str]:
    size = 0
    for piece in pieces:
        size += len(piece)
        if size > MAX_SIZE:
            raise LimitExceeded(f"the text is longer than {MAX_SIZE:,} characters")
        yield piece


_ENVIRONMENT = _Environment()
