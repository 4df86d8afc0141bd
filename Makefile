# Everything a contributor runs. Each target sets up what it needs.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready

.PHONY: demo test check bench peers docs golden browser clean

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt torch
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $(READY)

demo: $(READY)  ## a paired comparison of selectors on a volatile federation, with a report
	$(BIN)/turnout compare random round-robin fedcs e3cs ucb-cs oort rbcs-f \
		--rounds 500 --seeds 5 --out runs/demo
	$(BIN)/turnout report runs/demo --out runs/demo/report.html

test: $(READY) browser  ## all tests
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 -q

check: $(READY)  ## ruff, mypy strict, import-linter
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python docs/build_pages.py --check

bench: $(READY)  ## speed at 1e3 .. 1e6 clients, as a table
	$(BIN)/python benchmarks/speed.py
	$(BIN)/python benchmarks/loop.py

peers: $(READY)  ## our Oort and pow-d beside the public ones, where those are installed
	$(BIN)/python benchmarks/peers.py

docs: $(READY)  ## the pages of the selectors, from their docstrings
	$(BIN)/python docs/build_pages.py

golden: $(READY)  ## rewrite the golden file; explain the change in CHANGELOG.md
	$(BIN)/python -m tests.golden

browser:  ## Chromium, for the test of the report
	@command -v chromium >/dev/null || { apt-get update -qq && apt-get install -y -qq chromium; } \
		|| { echo "Install Chromium for the page test: apt-get install chromium"; exit 1; }

clean:
	rm -rf $(VENV) build dist src/*.egg-info
