"""Requests drawn from the server's own OpenAPI document: none is a 500, and neighbours don't notice."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import APIOperation, Case
from schemathesis.checks import (
    content_type_conformance,
    not_a_server_error,
    response_schema_conformance,
    status_code_conformance,
)
from schemathesis.core.result import Ok
from tests.server.conftest import chat
from tests.server.fakes import Live

from redraft.server.app import make_app
from redraft.server.service import Service
from redraft.server.settings import ServerSettings

CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
DOCUMENT = make_app(Service.of(ServerSettings()), lambda error: None).openapi()
SCHEMA = schemathesis.openapi.from_dict(DOCUMENT)
OPERATIONS = [result.ok() for result in SCHEMA.get_all_operations() if isinstance(result, Ok)]
TEXT = "The neighbour says this, over more than one block, and is not to be disturbed while others misbehave."


@contextmanager
def neighbour(server: Live) -> Iterator[None]:
    """Somebody who asks all the while, and gets exactly what is theirs."""
    stop = False

    def ask() -> int:
        count = 0
        with httpx.Client(base_url=server.url, timeout=120) as client:
            while not (stop and count):
                answer = client.post("/v1/chat/completions", json=chat(TEXT, n=2))
                assert [one["message"]["content"] for one in answer.json()["choices"]] == [TEXT] * 2
                count += 1
        return count

    with ThreadPoolExecutor(1) as pool:
        asking: Future[int] = pool.submit(ask)
        try:
            yield
        finally:
            stop = True
        assert asking.result() > 0


def fuzz(server: Live, operation: APIOperation, examples: int) -> int:
    """Sends so many cases, good ones and bad ones; returns how many were answered with 200."""
    good = 0

    slow = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]

    @settings(max_examples=examples, phases=[Phase.generate], suppress_health_check=slow, database=None)
    @given(case=operation.as_strategy())
    def check(case: Case) -> None:
        nonlocal good
        response = case.call(base_url=server.url, timeout=60)
        case.validate_response(response, checks=CHECKS)
        good += response.status_code == 200

    with neighbour(server):
        check()
    return good


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda one: one.label)
def test_no_request_is_a_500(server: Live, operation: APIOperation) -> None:
    fuzz(server, operation, 12)


@pytest.mark.slow
def test_ten_thousand_requests(server: Live) -> None:
    counts = {one.label: fuzz(server, one, -(-10_000 // len(OPERATIONS))) for one in OPERATIONS}
    assert all(counts[label] for label in counts if "{response_id}" not in label and "{model}" not in label), counts
