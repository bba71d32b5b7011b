# Needs Python 3.11 or newer and make; everything else goes into .venv.

NEW_ENOUGH := import sys; sys.exit(sys.version_info < (3, 11))
PYTHON ?= $(shell for name in python3 python3.14 python3.13 python3.12 python3.11 python; do \
  $$name -c '$(NEW_ENOUGH)' 2>/dev/null && echo $$name && break; done)
VENV := .venv
BIN := $(VENV)/bin
# A stamp is newer than all that it was made of, so that a second call does nothing.
STAMP := $(VENV)/.made
# Each has one thread, so two run at a time.
CHECKS := $(BIN)/tox run-parallel --parallel 2 --parallel-no-spinner -e types,lint,docs
EXTRAS := plan,data,hf
GROUPS := test lint docs release
ARGS ?=
SEEDS ?= 0:2000
INPUTS ?= 100000

.PHONY: help venv demo test test-all chaos fuzz coverage lint docs map bench clean

help:
	@echo "make demo    train a small transformer over six processes on this machine (about 6 minutes)"
	@echo "make test    mypy, ruff, docs, every rule, and the core of each laboratory (about 10 minutes on 2 processors)"
	@echo "make test-all  and what takes long: branch coverage, the laboratories in full, more examples, chaos and fuzz"
	@echo "make chaos   thousands of random faults in the simulated world: make chaos SEEDS=0:2000"
	@echo "make fuzz    mutated inputs for each parser, answers in fuzz.json; goes on where it ended: make fuzz INPUTS=1000000"
	@echo "make coverage  the tests of the rules in full, with their branch coverage"
	@echo "make lint    ruff and mypy alone, and the links of the docs"
	@echo "make docs    the documentation as a site, in site/"
	@echo "make map     docs/map.md: each module with the first sentence of its docstring"
	@echo "make bench   the benchmarks that need no other machine"
	@echo "make venv    the environment alone, in $(VENV)"
	@echo "make clean   remove what the above made"

venv: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || \
	  { echo "error: no Python 3.11 or newer found: install it, or name it: make PYTHON=/path/to/python3.11"; exit 2; }
	@$(PYTHON) -c '$(NEW_ENOUGH)' || \
	  { echo "error: $(PYTHON) is $$($(PYTHON) -V 2>&1): Python 3.11 or newer is needed: make PYTHON=/path/to/python3.11 ..."; exit 2; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || \
	  { echo "error: $(PYTHON) has no venv or ensurepip: install them (on Debian: apt install python3-venv)"; exit 2; }
	@echo "making $(VENV): torch is large, this takes some minutes the first time"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --disable-pip-version-check --quiet 'pip>=25.1' # the first that knows --group
	$(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt -e '.[$(EXTRAS)]' $(GROUPS:%=--group %)
	@touch $@

demo: $(STAMP)
	$(BIN)/p2pswarm demo $(ARGS)

test: $(STAMP)
	$(CHECKS)
	$(BIN)/tox run -e tests $(ARGS)

test-all: $(STAMP)
	$(CHECKS),examples
	$(BIN)/tox run -e coverage,labs $(ARGS)
	$(MAKE) chaos SEEDS=0:300
	$(MAKE) chaos SEEDS=0:300 ARGS=--aimed
	$(MAKE) fuzz INPUTS=20000

chaos: $(STAMP)
	$(BIN)/python -m tests.chaos --seeds $(SEEDS) $(ARGS)

fuzz: $(STAMP)
	$(BIN)/python bench/fuzz.py --inputs $(INPUTS) --json fuzz.json --resume $(ARGS)

coverage: $(STAMP)
	$(BIN)/tox run -e coverage $(ARGS)

lint: $(STAMP)
	$(CHECKS) $(ARGS)

docs: $(STAMP)
	$(BIN)/tox run -e docs $(ARGS)

map:
	$(PYTHON) tests/make_map.py

bench: $(STAMP)
	$(BIN)/python bench/bandwidth_sweep.py --quick
	$(BIN)/python bench/rpc_latency.py
	$(BIN)/python bench/import_time.py
	$(BIN)/python bench/ready.py
	$(BIN)/python bench/dht_scale.py
	$(BIN)/python bench/overhead.py

clean:
	rm -rf $(VENV) .tox build dist site *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis loss.png out
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
