PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: quickstart test lint types unit learn bench coverage docs clean

# Train PPO on CartPole until it is solved, watch it, and see where the run is.
quickstart: .venv/core
	$(BIN)/lab train +experiment=ppo_cartpole

# Everything a change must pass.
test: lint types unit

lint: .venv/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: .venv/dev
	$(BIN)/mypy

unit: .venv/dev
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 3 --max-worker-restart=0

# Every learning test, however long.
learn: .venv/dev
	$(BIN)/pytest -m learning -o addopts=-q

bench: .venv/dev
	$(BIN)/pytest -m bench -o addopts=-q

coverage: .venv/dev
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 --cov=rl_lab --cov-report=term-missing:skip-covered

# The page of every option, from the declarations.
docs: .venv/dev
	$(BIN)/python -m rl_lab.config.options_page > docs/options.md

.venv/bin/python:
	$(PYTHON) -m venv .venv

.venv/core: .venv/bin/python pyproject.toml constraints.txt
	$(PIP) -e .
	@touch $@

.venv/dev: .venv/core
	$(PIP) -e ".[dev]"
	$(PIP) --no-deps gym-pusht gym-aloha
	@touch $@

clean:
	rm -rf .venv build dist .pytest_cache .ruff_cache .mypy_cache .hypothesis
