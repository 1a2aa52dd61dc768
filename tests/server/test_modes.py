"""Modes with names of their own, over HTTP."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest
from tests.server.conftest import chat
from tests.server.fakes import live

from redraft.engine.named import write_mode
from redraft.errors import InvalidInput
from redraft.server.protocol.base import RedraftOptions, sampling
from redraft.server.service import Service
from redraft.server.settings import ServerSettings
from redraft.types import SamplingParams

MODES = {"code": {"threshold": 0.4, "edit_threshold": 0.0, "max_post_steps": 4}}


def test_requests_name_them_and_the_card_lists_them(tmp_path: Path) -> None:
    path = tmp_path / "modes.json"
    write_mode(path, "code", MODES["code"], {"budget": 1})
    with live(modes=str(path)) as server, httpx.Client(base_url=server.url, timeout=60) as client:
        assert client.get("/v1/models").json()["data"][0]["redraft"]["modes"] == MODES
        assert client.post("/v1/chat/completions", json=chat("Hi.", redraft={"mode": "code"})).status_code == 200
        params = server.engine.submitted[-1].params
        assert (params.threshold, params.edit_threshold, params.max_post_steps) == (0.4, 0.0, 4)
        refused = client.post("/v1/chat/completions", json=chat("Hi.", redraft={"mode": "fast"}))
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "redraft.mode"
    assert "one of speed, quality, draft-only, code" in refused.json()["error"]["message"]


def test_a_request_outranks_a_mode_and_a_mode_the_checkpoint() -> None:
    defaults = {"threshold": 0.9, "max_post_steps": 9, "temperature": 0.5}
    options = RedraftOptions.model_validate({"mode": "code", "edit_threshold": 0.25})
    params = sampling(defaults, MODES, {"max_tokens": 7}, options, {})
    assert params == SamplingParams(threshold=0.4, edit_threshold=0.25, max_post_steps=4, temperature=0.5, max_tokens=7)


def test_a_file_that_is_not_there_stops_the_start(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="cannot read modes"):
        Service.of(ServerSettings(modes=str(tmp_path / "none.json")))
