PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
PYTEST := OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest

.PHONY: setup run test test-services test-all test-blas versions check format bench mutants docs docs-publish dist clean

setup: .venv/.dev

# What `make run` needs (.plot), what everything needs (.dev), and the networks that `make test` does without
# (.sb3: PyTorch and Stable-Baselines3), in one environment. A stamp for each: installing again happens only when
# the list of packages changed. Modules are compiled when they are imported.
.venv/.plot .venv/.dev .venv/.sb3: .venv/.%: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --constraint constraints.txt --editable ".[$*]"
	touch .venv/.plot $@

run: .venv/.plot
	$(BIN)/python -m experiments.chain --out results/chain
	$(BIN)/python -m experiments.pinball --out results/pinball

test: setup
	$(PYTEST) -n auto --dist loadfile -m "not slow and not service"

# Not in parallel: a cluster and a browser take both cores.
test-services: setup
	$(PYTEST) -m "service and not slow"

.venv/.sb3: .venv/.dev

test-all: .venv/.sb3
	$(PYTEST) -n auto --dist loadfile -m "not service"
	$(PYTEST) -m service

# Kernels of BLAS round differently from machine to machine: the tests with those of four kinds, on one thread and on two.
test-blas: setup
	for kind in Prescott Haswell Zen SkylakeX; do for threads in 1 2; do \
		echo "$$kind, $$threads"; \
		OPENBLAS_CORETYPE=$$kind OPENBLAS_NUM_THREADS=$$threads $(BIN)/python -m pytest -n auto --dist loadfile -m "not slow and not service" || exit; \
	done; done

# Every Python that is claimed and found here, with the newest packages and with the lowest: about an hour.
versions:
	$(PYTHON) tools/versions.py $(VERSIONS)

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

# Operators of the numeric rooms broken one at a time: 80 of them, about an hour and a half on one core.
mutants: setup
	$(BIN)/python tools/mutants.py $(MUTANTS)

# Strict: a warning ends the build, and so does a page that would load anything from the network.
docs: setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "Read it: site/index.html"

# The pages of a version, or of main as "dev", on the branch gh-pages beside those of the others; PUSH=--push sends it.
docs-publish: setup
	PATH="$(CURDIR)/$(BIN):$$PATH" NO_MKDOCS_2_WARNING=1 $(BIN)/mike deploy $(PUSH) $(VERSION)

# Wheel and sdist into dist/, the wheel tried in an empty environment; TAG=v0.2.0 must be its version.
dist:
	$(PYTHON) tools/dist.py $(if $(TAG),--tag $(TAG))

clean:
	rm -rf .venv results site build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
