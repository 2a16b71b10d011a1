# Needs Python 3.11 or newer, pip and make. Everything is installed into .venv, at the versions of constraints.txt.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

.PHONY: demo test check bench docs clean

demo: $(READY)  ## about a minute on a laptop: a small GPT falls ill three times
	$(BIN)/torchdoctor demo

test: check  ## every check and every test
	$(BIN)/python -m pytest

check: $(READY)  ## what needs no run: lint, types, layers
	$(BIN)/ruff check
	$(BIN)/ruff format --check --quiet src tests benchmarks
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(READY)  ## what is found and what it costs, on this machine; about half an hour
	$(BIN)/python benchmarks/detection.py
	$(BIN)/python benchmarks/elsewhere.py
	$(BIN)/python benchmarks/overhead.py
	$(BIN)/python benchmarks/checkup.py
	$(BIN)/python benchmarks/lr_range.py
	$(BIN)/python benchmarks/reading.py
	$(BIN)/python benchmarks/live.py
	if [ -n "$$TORCHDOCTOR_DATA" ]; then $(BIN)/python benchmarks/real_logs.py; fi

docs: $(READY)  ## write the catalogue pages from the docstrings
	$(BIN)/python docs/generate_catalogue.py

clean:
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis build dist site

# The stamp is younger than what it was made from, so a second run installs nothing.
$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=python3.12")'
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@touch $@
