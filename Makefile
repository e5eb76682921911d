# make demo: the bare `coterie run`.   make test: lint, types, quick tests.   make venv: only make and install.
# make test-all: the suites and the slow tests as well. Suites: make test-attack, test-papers, test-benchmarks, test-docs (the
#   documents, their code and the generators of their tables). Slow tests: all methods in all engines, processes of Flower, a browser.
# make studies: lists what is recorded of the papers' experiments and how long the rest takes, runs what is missing of the small
#   scale, and makes their pages and figures anew.
# make attack: attempts to break what docs/deploy/threat-model.md promises, with a seed and a budget of time (ATTACK_ARGS).
# make docs: the documentation site, in build/docs.
# make bench: speed beside a plain loop and Flower's simulation; the documents' tables of it are made anew.
PYTHON ?= python3
VENV := .venv
# What Python compiles is kept: otherwise each worker compiles all tests anew, and each process that a test starts the package.
unexport PYTHONDONTWRITEBYTECODE
PIP := $(VENV)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

SUITES := attack papers benchmarks docs

.PHONY: demo test test-slow test-suites test-all $(SUITES:%=test-%) attack docs studies bench venv clean

demo: $(VENV)/.installed
	$(VENV)/bin/coterie run

venv: $(VENV)/.installed

test: $(VENV)/.installed-test
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check --quiet .
	$(VENV)/bin/mypy
	$(VENV)/bin/pytest -n auto -m "not slow" $(SUITES:%=--ignore=tests/%) $(PYTEST_ARGS)

$(SUITES:%=test-%): test-%: $(VENV)/.installed-test
	$(VENV)/bin/pytest -n auto -m "not slow" tests/$* $(PYTEST_ARGS)

test-suites: $(VENV)/.installed-test
	$(VENV)/bin/pytest -n auto -m "not slow" $(SUITES:%=tests/%) $(PYTEST_ARGS)

test-slow: $(VENV)/.installed-test
	$(VENV)/bin/pytest -n auto -m slow $(PYTEST_ARGS)

test-all: test test-suites test-slow

attack: $(VENV)/.installed-test
	cd tests && ../$(VENV)/bin/python -m attack $(ATTACK_ARGS)

docs: $(VENV)/.installed-docs
	$(VENV)/bin/sphinx-build -W --keep-going -q -b html docs build/docs
	@echo build/docs/index.html

bench: $(VENV)/.installed-bench
	$(VENV)/bin/python benchmarks/bench.py $(BENCH_ARGS)
	$(VENV)/bin/python tools/docs/generate.py

studies: $(VENV)/.installed-studies
	$(VENV)/bin/python -m papers list --out docs/results/studies
	$(VENV)/bin/python -m papers run all --scale small --out docs/results/studies --jobs $(shell getconf _NPROCESSORS_ONLN) $(STUDY_ARGS)
	$(VENV)/bin/python tools/docs/generate.py --figures

# An editable install: a change of the sources needs no new one, a change of pyproject.toml does.
$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Coterie needs Python 3.11 or later; try make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)
	$(PIP) -e .
	touch $@

$(VENV)/.installed-test: $(VENV)/.installed
	$(PIP) -e '.[test,hub,docs]'
	touch $@

$(VENV)/.installed-docs: $(VENV)/.installed
	$(PIP) -e '.[docs,flower]'
	touch $@

$(VENV)/.installed-studies: $(VENV)/.installed
	$(PIP) -e '.[report]'
	touch $@

$(VENV)/.installed-bench: $(VENV)/.installed
	$(PIP) -e '.[bench]'
	touch $@

clean:
	rm -rf $(VENV) build dist src/*.egg-info .pytest_cache .mypy_cache .ruff_cache
