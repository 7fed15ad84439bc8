# make help lists the targets. Each one sets up what it needs; a second call starts at once.
VENV := .venv
PYTHON ?= python3
BIN := $(VENV)/bin
PROJECTS := pyproject.toml benchmarks/pyproject.toml studies/transits/pyproject.toml
STAMP := $(VENV)/.installed
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
# One thread a process: two OpenMP threads on busy cores wait for each other.
export OMP_NUM_THREADS ?= 1

.DEFAULT_GOAL := help
.PHONY: help install demo test lint clean

help:  ## list the targets
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 12

$(STAMP): $(PROJECTS) constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) --upgrade pip
	$(PIP) -c constraints.txt -e ".[dev]" -e benchmarks -e studies/transits
	@touch $@

install: $(STAMP)  ## create .venv and install the three packages with the pinned versions

demo: install  ## change a prior end to end, print a table, write out/demo.png and out/report.html
	$(BIN)/python examples/demo.py --out out

test: install  ## run the tests of the library, the benchmark and the study
	$(BIN)/python -m pytest -n 2

lint: install  ## ruff and basedpyright
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/basedpyright --pythonpath $(BIN)/python

clean:  ## remove .venv and out
	rm -rf $(VENV) out
