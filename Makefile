# Both README commands make and share one virtual environment.
PYTHON ?= python3
VENV ?= .venv
DEMO_TOKENS ?= 100000
DEMO_OUT ?= demo
BIN := $(VENV)/bin

.PHONY: demo test test-network check docs fix install clean lowest versions release-check

demo: install  ## From nothing to a ready memory: `fit` on licence texts, the paper's table, a page.
	$(BIN)/nearlm demo --max-tokens $(DEMO_TOKENS) --out $(DEMO_OUT)

test: install check  ## Lint, type-check and test; no network beyond the installs.
	OMP_NUM_THREADS=1 NUMBA_NUM_THREADS=1 $(BIN)/python -m pytest -n auto

test-network: install  ## The tests that download packages.
	$(BIN)/python -m pytest -m network

check: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

docs: install  ## Write docs/api.md from the docstrings.
	$(BIN)/python docs/make_api.py

lowest: install  ## The wheel alone, in a fresh environment, with the lowest versions that it allows.
	$(BIN)/python tools/versions.py lowest

versions: lowest  ## The same, and with the highest.
	$(BIN)/python tools/versions.py highest

release-check: install  ## Before a release: archives, metadata, installation, versions, pages.
	$(BIN)/python tools/release_check.py

fix: install  ## Format, and mend what the linter can.
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

install: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	PIP_CONSTRAINT=constraints.txt $(BIN)/python -m pip install --quiet --disable-pip-version-check torch -e '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) demo demo-ci
