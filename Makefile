# make demo: the bare `coterie run`.   make test: lint, types, tests.   make venv: only make and install.
PYTHON ?= python3
VENV := .venv
PIP := $(VENV)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: demo test venv clean

demo: $(VENV)/.installed
	$(VENV)/bin/coterie run

venv: $(VENV)/.installed

test: $(VENV)/.installed-test
	$(VENV)/bin/ruff check .
	$(VENV)/bin/mypy
	$(VENV)/bin/pytest -n auto $(PYTEST_ARGS)

# An editable install: a change of the sources needs no new one, a change of pyproject.toml does.
$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Coterie needs Python 3.11 or later; try make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)
	$(PIP) -e .
	touch $@

$(VENV)/.installed-test: $(VENV)/.installed
	$(PIP) -e '.[test,hub]'
	touch $@

clean:
	rm -rf $(VENV) build dist src/*.egg-info .pytest_cache .mypy_cache .ruff_cache
