"""`python -O` (make test-optimized) leaves out no check of a test: a check of its own, since all others would pass."""

from __future__ import annotations

import pytest
from tests.engine.oracle import require_equal

from redraft.types import Choice, Stats


def test_asserts_of_test_files_and_of_what_they_import_fail() -> None:
    with pytest.raises(AssertionError):
        assert Stats().forwards
    with pytest.raises(AssertionError):
        require_equal(Choice("a", [1], "stop", Stats()), Choice("b", [2], "stop", Stats()))
