# Everything a contributor types. Each target makes the virtual environment that it needs.
VENV   := .venv
PYTHON := $(VENV)/bin/python
READY  := $(VENV)/.ready
BENCH  := .venv-bench

.DEFAULT_GOAL := help
.PHONY: help demo test check format bench clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# torch comes first and pinned: a resolver that is free to choose takes a CUDA build.
$(READY): pyproject.toml constraints.txt
	test -x $(PYTHON) || python3 -m venv $(VENV)
	$(PYTHON) -m pip install --quiet --disable-pip-version-check --constraint constraints.txt torch
	$(PYTHON) -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	touch $@

demo: $(READY)  ## train on the embedded digits, evaluate, show the run
	$(VENV)/bin/paceline train --data digits --model resnet20 --epochs 5 --run demo
	$(VENV)/bin/paceline eval runs/demo
	$(VENV)/bin/paceline runs

test: $(READY)  ## run the tests
	$(PYTHON) -m pytest --numprocesses 2 --dist loadfile

check: $(READY)  ## lint, types, layers, dependencies
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/ruff check .
	$(VENV)/bin/pyright
	$(VENV)/bin/lint-imports
	$(VENV)/bin/deptry src

$(BENCH)/.ready: pyproject.toml constraints.txt
	test -x $(BENCH)/bin/python || python3 -m venv $(BENCH)
	$(BENCH)/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt torch
	$(BENCH)/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable . \
		lightning accelerate
	touch $@

bench: $(BENCH)/.ready  ## compare with a raw loop, Fabric, Accelerate and Lightning
	$(BENCH)/bin/python -m benchmarks.loop_overhead
	$(BENCH)/bin/python -m benchmarks.start_up
	$(BENCH)/bin/python -m benchmarks.ranks

format: $(READY)  ## rewrite the code the way `make check` wants it
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

clean:  ## remove the virtual environments and caches
	rm -rf $(VENV) $(BENCH) .pytest_cache .ruff_cache .import_linter_cache
