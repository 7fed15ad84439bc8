# make help lists the targets. Each one sets up what it needs; a second call starts at once.
VENV := .venv
PYTHON ?= python3
BIN := $(VENV)/bin
EXTRAS := dev
STAMP := $(VENV)/.installed-$(EXTRAS)
export OMP_NUM_THREADS ?= 1

.DEFAULT_GOAL := help
.PHONY: help install demo test lint clean

help:  ## list the targets
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 12

$(STAMP): pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade pip
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[$(EXTRAS)]"
	@touch $@

install: $(STAMP)  ## create .venv and install reprior with the pinned versions

demo: install  ## change a prior end to end, print a table, write out/demo.png and out/report.html
	$(BIN)/reprior demo --out out

test: install  ## run the tests
	$(BIN)/python -m pytest -n 2

lint: install  ## ruff and basedpyright
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/basedpyright --pythonpath $(BIN)/python

clean:  ## remove .venv and out
	rm -rf $(VENV) out
