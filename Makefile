# Each command works on a fresh clone, on a machine that has make and Python 3.11 or newer; `make` alone lists them.
PYTHON ?= python3
VENV ?= .venv
EXTRAS ?= dev
TORCH_INDEX ?=

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
TORCH := $(shell sed -n 's/^torch==//p' constraints.txt)
BENCH ?= $(filter-out __init__ harness,$(basename $(notdir $(wildcard benchmarks/*.py))))

.PHONY: help demo test lint bench models clean
.DEFAULT_GOAL := help

help:
	@echo "make demo     train with and without hints, and show the result beside the paper's (10 minutes on two cores, after installation)"
	@echo "make test     run the tests               (ARGS='-k sorting' for some of them)"
	@echo "make lint     ruff, pyright and the order of imports"
	@echo "make bench    each fast thing in turns with its peers"
	@echo "make models   fetch and convert the small real models that some tests and benchmarks use"
	@echo "make clean    remove caches and build products; environments and results stay"
	@echo
	@echo "PYTHON=python3.12 chooses the interpreter, VENV=folder the environment, TORCH_INDEX=url the index that torch comes from."

demo: $(VENV)/.installed-base
	$(BIN)/trimtab run task-hinting --arm standard --arm successor --arm count --seeds 1

test: $(VENV)/.installed-$(EXTRAS)
	$(BIN)/python -m pytest $(ARGS)

lint: $(VENV)/.installed-$(EXTRAS)
	$(BIN)/ruff check .
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/lint-imports

bench: $(VENV)/.installed-base
	set -e; for room in $(BENCH); do $(BIN)/python -m benchmarks.$$room; done

models: $(VENV)/.installed-lm
	$(BIN)/python scripts/models.py

clean:
	rm -rf build dist docs/_build .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	find src tests benchmarks scripts -name __pycache__ -type d -prune -exec rm -rf {} +

# The stamps: an environment is made once, and brought up to date when what it depends on has changed.
$(VENV)/.created:
	@command -v $(PYTHON) >/dev/null || { echo "$(PYTHON) is not on the PATH; install Python 3.11 or newer, or name yours: make PYTHON=/path/to/python3.12"; exit 1; }
	@$(PYTHON) -c 'import sys; v = sys.version_info; v >= (3, 11) or sys.exit(f"trimtab needs Python 3.11 or newer, and $(PYTHON) is {v[0]}.{v[1]}; name a newer one: make PYTHON=python3.12")'
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { echo "$(PYTHON) cannot make virtual environments: it lacks venv or ensurepip; on Debian and Ubuntu: apt install python3-venv"; exit 1; }
	@echo "Making the environment $(VENV) with $$($(PYTHON) -V). This downloads, once:"
	@echo "  - about 100 MB of packages (numpy, scipy, scikit-learn, matplotlib and what they need), 200 MB with the tools for tests"
ifeq ($(TORCH_INDEX),)
	@echo "  - torch $(TORCH) as your default index has it: on macOS about 80 MB, on Linux a CUDA build of about 3 GB (6 GB on disk)."
	@echo "    The CPU build (about 190 MB) is enough for everything here. To take it, press Ctrl-C and give the CPU index that"
	@echo "    https://pytorch.org/get-started names: make $(MAKECMDGOALS) TORCH_INDEX=URL"
	@if [ -t 0 ]; then echo "Starting in 5 seconds ..."; sleep 5; fi
else
	@echo "  - torch $(TORCH) from $(TORCH_INDEX): about 190 MB for a CPU build, about 3 GB for a CUDA build"
endif
	@$(PYTHON) -m venv $(VENV)
	@touch $@

# torch first and alone: the index given for it serves nothing else, and pip shows how far this, by far the largest download, has come.
$(VENV)/.installed-%: pyproject.toml constraints.txt | $(VENV)/.created
	$(PIP) install -c constraints.txt $(if $(TORCH_INDEX),--no-deps --index-url $(TORCH_INDEX) )torch
	$(PIP) install -q -c constraints.txt -e '.$(if $(filter-out base,$*),[$*])'
	@touch $@
