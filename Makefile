# Everything a contributor types. Each target makes the virtual environment that it needs.
VENV   := .venv
PYTHON := $(VENV)/bin/python
READY  := $(VENV)/.ready
BENCH  := .venv-bench
LAB_PACKAGES := slurm-wlm munge iproute2 openmpi-bin

.DEFAULT_GOAL := help
.PHONY: help demo test lab lab-packages check format bench clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-9s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

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
	$(PYTHON) -m pytest --numprocesses 2 --dist loadfile -m "not lab or quick"

lab: $(READY) lab-packages  ## run the tests on several hosts and a real Slurm, as root
	$(PYTHON) -m pytest -m lab tests/lab

# Where this cannot be done, the tests that need it say so and are skipped.
lab-packages:
	@if [ "$$(id -u)" = 0 ] && ! { command -v slurmctld && command -v munged && command -v tc && command -v mpirun; } >/dev/null; then \
		export DEBIAN_FRONTEND=noninteractive; \
		timeout 120 apt-get update --quiet=2 && timeout 300 apt-get install --quiet=2 --yes --no-install-recommends \
			$(LAB_PACKAGES) >/dev/null || echo "could not install $(LAB_PACKAGES); going on without"; \
	fi

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
	$(BENCH)/bin/python -m benchmarks.ranks speed
	$(BENCH)/bin/python -m benchmarks.ranks start

format: $(READY)  ## rewrite the code the way `make check` wants it
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

clean:  ## remove the virtual environments and caches
	rm -rf $(VENV) $(BENCH) .pytest_cache .ruff_cache .import_linter_cache
