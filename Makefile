PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
STAMP := .venv/.installed

.PHONY: setup run test test-all check format bench docs clean

setup: $(STAMP)

# One stamp: installing again happens only when the list of packages changed.
$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable ".[dev]"
	touch $@

run: setup
	$(BIN)/policyrisk reproduce chain --out results/chain
	$(BIN)/policyrisk reproduce pinball --out results/pinball

test: setup
	OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest -m "not slow"

test-all: setup
	OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: setup
	$(BIN)/python benchmarks/run.py

# Strict: a warning ends the build, and so does a page that would load anything from the network.
docs: setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "Read it: site/index.html"

clean:
	rm -rf .venv results site build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
