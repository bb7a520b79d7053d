# Both README commands make and share one virtual environment.
PYTHON ?= python3
VENV ?= .venv
DEMO_TOKENS ?= 20000
DEMO_STORE ?= demo-store
BIN := $(VENV)/bin

.PHONY: demo test test-network check install clean

demo: install  ## Build a small real store (SmolLM2 over licence texts) and show it.
	$(BIN)/nearlm build --model smollm2-135m --text spdx:train --max-tokens $(DEMO_TOKENS) --out $(DEMO_STORE)
	$(BIN)/nearlm info $(DEMO_STORE)
	$(BIN)/nearlm info $(DEMO_STORE) --record 1234
	$(BIN)/nearlm verify $(DEMO_STORE)

test: install check  ## Lint, type-check and test; no network beyond the installs.
	OMP_NUM_THREADS=1 NUMBA_NUM_THREADS=1 $(BIN)/python -m pytest -n auto

test-network: install  ## The tests that download packages.
	$(BIN)/python -m pytest -m network

check: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

install: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	PIP_CONSTRAINT=constraints.txt $(BIN)/python -m pip install --quiet --disable-pip-version-check torch -e '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) demo-store demo-store-ci
