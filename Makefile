# Everything a contributor runs. Each target sets up what it needs.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready

.PHONY: demo test check bench golden clean

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt torch
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $(READY)

demo: $(READY)  ## a paired comparison of selectors on a volatile federation
	$(BIN)/turnout compare random round-robin fedcs e3cs ucb-cs oort rbcs-f --rounds 500 --seeds 5

test: $(READY)  ## all tests
	$(BIN)/python -m pytest -n 2 -q

check: $(READY)  ## ruff, mypy strict, import-linter
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(READY)  ## speed at 1e3 .. 1e6 clients, as a table
	$(BIN)/python benchmarks/speed.py

golden: $(READY)  ## rewrite the golden file; explain the change in CHANGELOG.md
	$(BIN)/python -m tests.golden

clean:
	rm -rf $(VENV) build dist src/*.egg-info
