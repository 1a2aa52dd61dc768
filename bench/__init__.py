"""Benchmarks: each prints ratios measured side by side in one process."""

import os

# Before anything imports torch: threads that wait must sleep, or they take time from those that work.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("GOMP_SPINCOUNT", "0")
