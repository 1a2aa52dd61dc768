"""What all tests share: one torch thread a worker, short property tests, no colour or width from outside."""

from __future__ import annotations

import os
from pathlib import Path

# Before anything imports torch: workers share the cores.
os.environ["OMP_NUM_THREADS"] = "1"
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
for name in ("NO_COLOR", "FORCE_COLOR", "CLICOLOR_FORCE", "COLUMNS", "LINES"):
    os.environ.pop(name, None)

import pytest
from hypothesis import HealthCheck, settings

# `python -O` leaves out asserts, but for modules that pytest rewrites: by itself, test files only.
pytest.register_assert_rewrite(*(f"tests.{path.name}" for path in Path(__file__).parent.iterdir() if path.is_dir()))

# The same examples in every run of continuous integration: a new finding belongs on a desk, not in front of a merge.
settings.register_profile(
    "default",
    deadline=None,
    max_examples=30,
    derandomize=bool(os.environ.get("CI")),
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("long", deadline=None, max_examples=1000, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


@pytest.fixture(autouse=True)
def _seeded() -> None:
    """Torch's global generator starts every test in the same state, whatever ran before in this worker."""
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(0)
