"""`redraft serve`: OpenAI's API over HTTP. Settings come from flags, else REDRAFT_* variables, else a file."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer

from redraft.cli import options
from redraft.errors import InvalidInput

LISTS = ("api_keys", "cors_origins")


def _option(name: str, help: str, *flags: str) -> Any:
    """Without a default: what is given nowhere is left to `ServerSettings`."""
    shown = flags or (f"--{name.replace('_', '-')}",)
    return typer.Option(*shown, envvar=f"REDRAFT_{name.upper()}", help=help, show_default=False)


def serve(
    model: Annotated[
        str | None,
        typer.Argument(envvar="REDRAFT_MODEL", help="Checkpoint folder [default: the model inside the package]."),
    ] = None,
    model_option: options.Model = None,
    config: Annotated[Path | None, _option("config", "YAML file of these settings, named with underscores.")] = None,
    name: Annotated[str | None, _option("name", "What requests call the model [default: the folder's name].")] = None,
    modes: Annotated[
        str | None, _option("modes", "File of `redraft tune` [default: modes.json in the checkpoint folder].")
    ] = None,
    host: Annotated[str | None, _option("host", "Address to listen at [default: 127.0.0.1].")] = None,
    port: Annotated[int | None, _option("port", "Port to listen at; 0 takes a free one [default: 8000].")] = None,
    api_keys: Annotated[
        list[str] | None,
        _option("api_keys", "Turn away who sends none of these keys; may be repeated.", "--api-key"),
    ] = None,
    cors_origins: Annotated[
        list[str] | None,
        _option("cors_origins", "Let web pages of this origin ask; may be repeated.", "--cors-origin"),
    ] = None,
    device: Annotated[str | None, _option("device", "cpu, cuda, ... [default: the GPU if there is one].")] = None,
    dtype: Annotated[str | None, _option("dtype", "float32, bfloat16, ... [default: the device's].")] = None,
    block_length: Annotated[int | None, _option("block_length", "Tokens of a block [default: the model's].")] = None,
    max_running: Annotated[int | None, _option("max_running", "Answers written at a time [default: 16].")] = None,
    cache_tokens: Annotated[
        int | None, _option("cache_tokens", "Memory for keys and values, in positions [default: docs/engine.md].")
    ] = None,
    memory_fraction: Annotated[
        float | None, _option("memory_fraction", "The same as a share of the free memory.")
    ] = None,
    prefix_cache: Annotated[
        bool | None,
        _option(
            "prefix_cache",
            "Keep what prompts begin with for the next [default: yes].",
            "--prefix-cache/--no-prefix-cache",
        ),
    ] = None,
    queue_limit: Annotated[int | None, _option("queue_limit", "Answers that may wait [default: 256].")] = None,
    max_requests: Annotated[int | None, _option("max_requests", "Requests in progress [default: 1024].")] = None,
    max_request_tokens: Annotated[
        int | None, _option("max_request_tokens", "Tokens that one request may ask for [default: 65536].")
    ] = None,
    max_body_bytes: Annotated[int | None, _option("max_body_bytes", "Size of a request [default: 4194304].")] = None,
    header_seconds: Annotated[
        float | None, _option("header_seconds", "In which a request's head must come [default: 10].")
    ] = None,
    body_seconds: Annotated[float | None, _option("body_seconds", "The same of its body [default: 30].")] = None,
    request_seconds: Annotated[
        float | None, _option("request_seconds", "For an answer, waiting included [default: 600].")
    ] = None,
    drain_seconds: Annotated[
        float | None, _option("drain_seconds", "For running answers after SIGTERM [default: 30].")
    ] = None,
    stored_responses: Annotated[
        int | None, _option("stored_responses", "Of /v1/responses, kept in memory [default: 256].")
    ] = None,
    log_prompts: Annotated[
        bool | None, _option("log_prompts", "Show in the log what was asked [default: no].", "--log-prompts")
    ] = None,
) -> None:
    """Serve a model by OpenAI's API at http://127.0.0.1:8000, with a playground at / and the API's pages at /docs.

    Example: redraft serve --port 8000
    """
    given = {name: value for name, value in locals().items() if value not in (None, [])}
    if (named := given.pop("model_option", None)) is not None:  # as the other commands have it; over the variable
        if model is not None and model != os.environ.get("REDRAFT_MODEL"):
            raise InvalidInput(f"the model is given twice: {model} and --model {named}")
        given["model"] = named
    if find_spec("fastapi") is None or find_spec("uvicorn") is None:
        raise InvalidInput("redraft serve needs FastAPI and uvicorn: pip install 'redraft[serve]'")
    from redraft.server.logs import start_logging
    from redraft.server.run import serve as run
    from redraft.server.settings import ServerSettings

    path = given.pop("config", None)
    values = (read_file(path, ServerSettings.names()) if path else {}) | given
    for listed in LISTS:
        if listed in values:
            values[listed] = tuple(values[listed])
    settings = ServerSettings(**values)
    start_logging()
    run(settings)


def read_file(path: Path, names: tuple[str, ...]) -> dict[str, Any]:
    """The settings in a YAML file. Raises InvalidInput, naming what isn't one."""
    import yaml

    try:
        values = yaml.safe_load(options.read_text(path))
    except yaml.YAMLError as error:
        raise InvalidInput(f"{path} is not YAML: {str(error).splitlines()[0]}") from None
    if not isinstance(values, dict):
        raise InvalidInput(f"{path} must hold settings as name: value, got {type(values).__name__}")
    for name, value in values.items():
        if name not in names:
            raise InvalidInput(f"{path}: unknown setting {name!r}; known: {', '.join(names)}")
        if name in LISTS and not (isinstance(value, list) and all(isinstance(item, str) for item in value)):
            raise InvalidInput(f"{path}: {name} must be a list of texts, got {value!r}")
    return values
