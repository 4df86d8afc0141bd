# Everything a contributor runs. Each target sets up what it needs.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
# Python keeps what it compiled, whatever the shell says: tests start hundreds of processes, and each
# would compile torch and Flower again.
export PYTHONDONTWRITEBYTECODE :=
# What "make deployment" runs; CI leaves out the example's script, which repeats it at length. Ray is a
# part of "make test".
DEPLOYMENT ?= tests/live/flower tests/live/nvflare

# The package, and the pages that are made by executing the tutorial's scripts.
SOURCES := $(shell find src -name '*.py')
STEPS   := $(patsubst examples/%.py,build/tutorial/%.md,$(wildcard examples/[0-9][0-9]_*.py))

.PHONY: demo test quick long deployment check bench peers docs dist papers choose replay controls reliability arena aggregation audit golden browser database clean

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --no-compile --constraint constraints.txt torch
	$(BIN)/pip install --quiet --no-compile --constraint constraints.txt --editable '.[dev]'
	touch $(READY)

demo: $(READY)  ## why selection matters: five selectors on the embedded digits, slow clients fail more often
	$(BIN)/turnout compare Random=random Oort=oort E3CS=e3cs RBCS-F=rbcs-f pace \
		--train --data digits --partition shards:per_client=2 --model 'mlp:hidden=[64]' \
		--world unequal --rounds 200 --seeds 10 --target 0.9 --out runs/demo
	$(BIN)/turnout report runs/demo --out runs/demo/report.html

test: $(READY) browser database  ## all tests
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 -q -m "not deployment" --durations=40

quick: $(READY)  ## under a minute while working: no browser, no Flower, no training grid
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 -q -m "not deployment" --quick tests

long: $(READY)  ## far more random damage, odd input and kills than CI tries: results/faults.json; hours
	$(BIN)/python benchmarks/faults.py --long

deployment: $(READY)  ## Flower and NVFlare on loopback: nodes that are killed and come back
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -m deployment $(DEPLOYMENT)

check: $(READY)  ## ruff, mypy strict, import-linter
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python docs/build_pages.py --check
	$(BIN)/python docs/build_papers.py --check
	$(BIN)/python docs/module_map.py --check
	$(BIN)/python docs/build_reliability.py --check
	$(BIN)/python docs/build_arena.py --check
	$(BIN)/python docs/build_aggregation.py --check
	$(BIN)/python docs/build_choose.py --check
	$(BIN)/python docs/build_replay.py --check
	$(BIN)/python docs/build_twin.py --check
	$(BIN)/python docs/build_when.py --check

bench: $(READY)  ## speed: selectors at 1e3 .. 1e6 clients, the loop, training, Flower; as tables
	$(BIN)/python benchmarks/speed.py
	$(BIN)/python benchmarks/loop.py
	$(BIN)/python benchmarks/training.py
	$(BIN)/python benchmarks/flower.py
	$(BIN)/python benchmarks/serve.py

peers: $(READY)  ## our Oort and pow-d beside the public ones, where those are installed
	$(BIN)/python benchmarks/peers.py

build/tutorial/%.md: examples/%.py docs/build_tutorial.py $(SOURCES) | $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python docs/build_tutorial.py $<

docs: $(READY) $(STEPS)  ## the site in build/site; first the pages that are made from the code
	$(BIN)/python docs/build_pages.py
	$(BIN)/python docs/module_map.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict  # --quiet would switch --strict off

dist: $(READY)  ## sdist and wheel in dist/, and the wheel tried in an environment of its own
	rm -rf dist build/wheel
	$(BIN)/python -m build --outdir dist
	$(PYTHON) -m venv build/wheel
	build/wheel/bin/pip install --quiet --constraint constraints.txt "$$(echo dist/*.whl)[cli]"
	cd build/wheel && bin/python -c 'import turnout; print(turnout.__file__)'
	cd build/wheel && bin/turnout --version && bin/turnout --help && bin/turnout simulate e3cs --rounds 20

papers: $(READY)  ## pages and figures of docs/papers, from results/*.json
	$(BIN)/python docs/build_papers.py

choose: $(READY)  ## measure the tables of docs/choose.md again: results/choose.json and its page
	$(BIN)/python docs/build_choose.py --run

controls: $(READY)  ## each method in a world made for it: results/controls.json and docs/when.md; ten minutes
	OMP_NUM_THREADS=1 $(BIN)/python docs/build_when.py --run

replay: $(READY)  ## judge 200 logs of each known world: results/replay.json and its page; half an hour, resumes
	OMP_NUM_THREADS=1 $(BIN)/python docs/build_replay.py --run

reliability: long  ## what faults and hostile clients do: results and their page; resumes where it stopped
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/reliability.py
	$(BIN)/python docs/build_reliability.py

audit: $(READY)  ## risky code, licences, and known vulnerabilities if pip-audit is installed (needs a network)
	$(BIN)/bandit --quiet --severity-level medium --confidence-level medium --recursive src
	$(BIN)/pip-licenses --from mixed --summary --partial-match --fail-on GPL \
		--ignore-packages psycopg psycopg-binary
	@if $(BIN)/python -m pip_audit --version >/dev/null 2>&1; \
		then $(BIN)/python -m pip_audit --no-deps --requirement constraints.txt; \
		else echo "Known vulnerabilities: not looked for. It needs a network: pip install pip-audit"; fi

arena: $(READY)  ## every built-in selector in the arena: results/arena.json and its page; resumes where it stopped
	OMP_NUM_THREADS=1 $(BIN)/turnout arena --results results
	$(BIN)/python docs/build_arena.py

aggregation: $(READY)  ## rules of aggregation against a tuned server rate: results/aggregation and its page; resumes
	OMP_NUM_THREADS=1 $(BIN)/python docs/build_aggregation.py --run
	$(BIN)/python docs/build_aggregation.py

golden: $(READY)  ## rewrite the golden file; explain the change in CHANGELOG.md
	$(BIN)/python -m tests.golden

browser:  ## Chromium, for the test of the report
	@command -v chromium >/dev/null || { apt-get update -qq && apt-get install -y -qq chromium; } \
		|| { echo "Install Chromium for the page test: apt-get install chromium"; exit 1; }

database:  ## PostgreSQL, for the tests of the server; each starts one of its own
	@ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 \
		|| { apt-get update -qq && apt-get install -y -qq postgresql; } \
		|| { echo "Install PostgreSQL for the server's tests: apt-get install postgresql"; exit 1; }

clean:
	rm -rf $(VENV) build dist src/*.egg-info
