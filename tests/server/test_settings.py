"""Settings of the server: what is refused, where they come from, and that the guide says what the code says."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

import redraft.server.run
from redraft.cli.main import run
from redraft.engine.defaults import sampling_defaults
from redraft.errors import ConfigError, InvalidInput
from redraft.server.protocol.base import RedraftOptions
from redraft.server.protocol.chat import ChatRequest
from redraft.server.protocol.completions import CompletionRequest
from redraft.server.protocol.responses import ResponseRequest
from redraft.server.settings import ServerSettings
from redraft.types import SamplingParams

GUIDE = (Path(__file__).parents[2] / "docs" / "server.md").read_text(encoding="utf-8")


def section(title: str) -> str:
    return GUIDE.split(f"\n## {title}\n")[1].split("\n## ")[0]


@pytest.mark.parametrize(
    ("values", "part"),
    [
        ({"port": -1}, "port"),
        ({"port": 70000}, "port"),
        ({"port": True}, "port"),
        ({"queue_limit": -1}, "queue_limit"),
        ({"max_body_bytes": 0}, "max_body_bytes"),
        ({"request_seconds": 0}, "request_seconds"),
        ({"drain_seconds": float("nan")}, "drain_seconds"),
        ({"api_keys": ("short",)}, "api_keys"),
        ({"api_keys": ("with a space",)}, "api_keys"),
        ({"cors_origins": ("example.org",)}, "cors_origins"),
        ({"max_running": 0}, "max_running"),
        ({"cache_tokens": 10, "memory_fraction": 0.5}, "cache_tokens"),
        ({"block_length": 0}, "block_length"),
    ],
)
def test_bad_settings_are_refused_by_name(values: dict[str, Any], part: str) -> None:
    with pytest.raises(InvalidInput, match=part):
        ServerSettings(**values)


def test_keys_are_not_shown() -> None:
    settings = ServerSettings(api_keys=("a-secret-key",))
    assert settings.public()["api_keys"] == 1
    assert "a-secret-key" not in str(settings.public())
    assert not settings.open_to_others
    assert ServerSettings(host="0.0.0.0").open_to_others
    assert not ServerSettings(host="0.0.0.0", api_keys=("a-secret-key",)).open_to_others


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[ServerSettings]:
    """The settings that `redraft serve` would have started with."""
    found: list[ServerSettings] = []
    monkeypatch.setattr(redraft.server.run, "serve", found.append)
    return found


def test_flags_win_over_variables_over_the_file_over_defaults(
    started: list[ServerSettings], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "server.yaml"
    file.write_text("port: 1\nqueue_limit: 2\nrequest_seconds: 3\nlog_prompts: true\napi_keys: [from-the-file]\n")
    monkeypatch.setenv("REDRAFT_CONFIG", str(file))
    monkeypatch.setenv("REDRAFT_QUEUE_LIMIT", "20")
    monkeypatch.setenv("REDRAFT_REQUEST_SECONDS", "30")
    monkeypatch.setenv("REDRAFT_MODEL", "from-a-variable")
    assert run(["serve", "--request-seconds", "300", "--no-prefix-cache"]) == 0
    (settings,) = started
    assert (settings.port, settings.queue_limit, settings.request_seconds) == (1, 20, 300.0)
    assert (settings.log_prompts, settings.prefix_cache, settings.api_keys) == (True, False, ("from-the-file",))
    assert (settings.model, settings.max_running) == ("from-a-variable", 16)
    monkeypatch.setenv("REDRAFT_API_KEYS", "variable-1 variable-2")
    assert run(["serve"]) == 0
    assert started[1].api_keys == ("variable-1", "variable-2")
    assert run(["serve", "--api-key", "flag-key-1", "--api-key", "flag-key-2", "folder"]) == 0
    assert started[2].api_keys == ("flag-key-1", "flag-key-2")
    assert started[2].model == "folder"
    assert run(["serve", "--model", "as-elsewhere"]) == 0
    assert started[3].model == "as-elsewhere"
    assert run(["serve", "folder", "--model", "another"]) == 2


@pytest.mark.parametrize(
    ("text", "part"),
    [("prot: 1", "prot"), ("- 1", "name: value"), ("api_keys: abc", "api_keys"), ("a: [", "YAML"), ("port: x", "port")],
)
def test_a_bad_file_is_one_line_and_exit_code_2(
    started: list[ServerSettings], tmp_path: Path, text: str, part: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "server.yaml"
    file.write_text(text)
    assert run(["serve", "--config", str(file)]) == 2
    assert part in capsys.readouterr().err
    assert started == []


def test_every_setting_is_an_option_and_stands_in_the_guide_with_its_default() -> None:
    rows = re.findall(r"^\| `([a-z_]+)` \| `([^`]+)` \|", section("Settings"), re.MULTILINE)
    assert {name: ast.literal_eval(default) for name, default in rows} == {
        field.name: field.default for field in fields(ServerSettings)
    }
    import inspect

    from redraft.cli.serve import serve

    assert set(inspect.signature(serve).parameters) == {*ServerSettings.names(), "config", "model_option"}


@pytest.mark.parametrize(
    ("title", "model"),
    [("Chat completions", ChatRequest), ("Completions", CompletionRequest), ("Responses", ResponseRequest)],
)
def test_every_field_of_a_request_stands_in_the_guide(title: str, model: Any) -> None:
    """Those that are honoured, and those that are refused."""
    named = set(re.findall(r"`([a-z_]+)`", section(title)))
    assert {*model.model_fields, *model.neutral} <= named


def test_the_redraft_object_has_every_setting_that_openai_has_no_name_for() -> None:
    own = {field.name for field in fields(SamplingParams)}
    openai = {*ChatRequest.model_fields, "max_tokens"}
    left = own - openai - set(RedraftOptions.model_fields)
    assert left == {"stop_token_ids", "ignore_eos"}
    assert set(RedraftOptions.model_fields) - own == {"events"}
    assert all(f"`{name}`" in section("Chat completions") for name in RedraftOptions.model_fields)


def test_what_a_checkpoint_proposes() -> None:
    file = {"temperature": 0.6, "top_p": 0.9, "max_new_tokens": 64, "editing_threshold": 0.2, "eos_token_id": 3}
    assert sampling_defaults(file) == {"temperature": 0.6, "top_p": 0.9, "max_tokens": 64, "edit_threshold": 0.2}
    assert sampling_defaults(file | {"do_sample": False}) == {"max_tokens": 64, "edit_threshold": 0.2}
    with pytest.raises(ConfigError, match="temperature"):
        sampling_defaults({"temperature": -1})


def test_the_server_loads_no_torch() -> None:
    code = "import redraft.server.run, sys; print({'torch', 'transformers'} & sys.modules.keys())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "set()", done.stderr
