# Everything a contributor types. Each target makes the virtual environment that it needs.
VENV   := .venv
PYTHON := $(VENV)/bin/python
READY  := $(VENV)/.ready
BENCH  := .venv-bench
ENGINES := .venv-engines
SITE   := .venv-docs
BROWSER := chromium
LAB_PACKAGES := slurm-wlm munge iproute2 openmpi-bin

.DEFAULT_GOAL := help
.PHONY: help demo engines test test-all campaign lab fuzz chaos causes lab-packages browser replay check format docs bench bench-quick bench-epoch clean predictions

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# torch comes first and pinned: a resolver that is free to choose takes a CUDA build.
$(READY): pyproject.toml constraints.txt
	test -x $(PYTHON) || python3 -m venv $(VENV)
	$(PYTHON) -m pip install --quiet --disable-pip-version-check --constraint constraints.txt torch
	$(PYTHON) -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	touch $@

DEMO := --data digits --model resnet20 --epochs 3 --threads 1 --device cpu --exact bitwise
demo: $(READY)  ## train on the embedded digits with one rank and with two: the same bits; evaluate, draw the report
	$(VENV)/bin/paceline train $(DEMO) --name demo
	$(VENV)/bin/paceline train $(DEMO) --name demo-2-ranks --nproc 2
	$(VENV)/bin/paceline compare runs/demo runs/demo-2-ranks
	$(VENV)/bin/paceline eval runs/demo
	$(VENV)/bin/paceline runs
	$(VENV)/bin/paceline report demo demo-2-ranks --label "one rank" --label "two ranks" --out runs/demo.html
	$(VENV)/bin/paceline report demo-2-ranks

# Not --dist loadfile: pytest-xdist 3.8 waits for ever after a worker has crashed (pytest-dev/pytest-xdist#1323).
TESTS := not (lab or long or slow)

test: $(READY)  ## run the tests that take a few seconds at most
	$(PYTHON) -m pytest --numprocesses 2 --dist worksteal --max-worker-restart 20 -m "$(TESTS)"

test-all:  ## run all tests that CI runs: those of make test, and slower ones
	$(MAKE) test TESTS="quick or not (lab or long)"

test-again: $(READY)  ## run the tests that failed last time, one after the other
	$(PYTHON) -m pytest --last-failed --last-failed-no-failures none -m "quick or not (lab or long)"

lab: $(READY) lab-packages  ## run the tests on several hosts and a real Slurm, as root, and other long tests
	$(PYTHON) -m pytest -m "lab or long"

fuzz: $(READY)  ## read 100,000 damaged or invented inputs with every reader of a file
	FUZZ=100000 $(PYTHON) -m pytest --timeout 0 tests/records/test_lying_files.py tests/data/test_lying_data.py

chaos: $(READY) lab-packages  ## strike training with random faults, as root, and check bits, records, files and processes
	$(PYTHON) -m lab.chaos $(CHAOS)

causes: $(READY) lab-packages  ## plant causes in runs, ten times each, and see whether explain names them, as root
	$(PYTHON) -m lab.causes --trials 10

# Where this cannot be done, the tests that need it say so and are skipped.
lab-packages:
	@if [ "$$(id -u)" = 0 ] && ! { command -v slurmctld && command -v munged && command -v tc && command -v mpirun; } >/dev/null; then \
		export DEBIAN_FRONTEND=noninteractive; \
		timeout 120 apt-get update --quiet=2 && timeout 300 apt-get install --quiet=2 --yes --no-install-recommends \
			$(LAB_PACKAGES) >/dev/null || echo "could not install $(LAB_PACKAGES); continuing without"; \
	fi

# A browser for the tests of the report; without one they are skipped and say so.
browser:
	@if [ "$$(id -u)" = 0 ] && ! command -v $(BROWSER) >/dev/null; then \
		export DEBIAN_FRONTEND=noninteractive; \
		timeout 120 apt-get update --quiet=2 && timeout 300 apt-get install --quiet=2 --yes --no-install-recommends \
			$(BROWSER) >/dev/null || echo "could not install $(BROWSER); continuing without"; \
	fi

replay: $(READY) lab-packages  ## replay a published table on hosts with shaped links, as root: docs/results/replay.html
	$(PYTHON) -m benchmarks.replay

predictions: $(READY)  ## predict steps on shaped links from one profile, then measure them, as root
	$(PYTHON) -m benchmarks.predictions emulated
	$(PYTHON) -m benchmarks.predictions real

campaign: $(READY)  ## 1,000 random modules and runs of --exact bitwise: writes docs/results/campaign.md
	OMP_NUM_THREADS=1 $(PYTHON) -m tests.campaign --write $(CAMPAIGN)

check: $(READY)  ## lint, types, layers, dependencies
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/ruff check .
	$(VENV)/bin/pyright
	$(VENV)/bin/lint-imports
	$(VENV)/bin/deptry src

# Without timm: it needs torchvision, whose wheel on PyPI is built for CUDA. Beside a CPU build of torch its import fails,
# and with it that of Lightning, which imports torchvision where there is one.
$(BENCH)/.ready: pyproject.toml constraints.txt
	python3 -m venv --clear $(BENCH)
	$(BENCH)/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt torch
	$(BENCH)/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable . \
		lightning accelerate
	$(BENCH)/bin/python -c 'import accelerate, lightning'
	touch $@

bench: $(READY) $(BENCH)/.ready  ## compare with a raw loop, Fabric, Accelerate, Lightning, torchvision, timm and Pillow
	$(BENCH)/bin/python -m benchmarks.loop_overhead $(QUICK)
	$(PYTHON) -m benchmarks.start_up $(QUICK)
	$(PYTHON) -m benchmarks.data_augment $(QUICK)
	$(PYTHON) -m benchmarks.data_decode $(QUICK)
	$(PYTHON) -m benchmarks.ranks $(QUICK)
	$(PYTHON) -m benchmarks.exact $(QUICK)
	$(PYTHON) -m benchmarks.scale $(QUICK)

bench-quick:  ## run every benchmark of `make bench` with very few rounds: does it still work?
	$(MAKE) bench QUICK=--quick

bench-epoch: $(READY)  ## train on CIFAR-10 beside the plain script (paceline data fetch cifar10 first)
	$(PYTHON) -m benchmarks.cifar_epoch

# Ray takes half a gigabyte, so it is in an environment of its own.
$(ENGINES)/.ready: pyproject.toml constraints.txt
	python3 -m venv --clear $(ENGINES)
	$(ENGINES)/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt torch
	$(ENGINES)/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[ray]' \
		hypothesis mlflow-skinny pytest pytest-timeout pytest-xdist tensorboard torchx
	touch $@

engines: $(ENGINES)/.ready  ## train below a real Ray and TorchX, and track with a real MLflow
	$(ENGINES)/bin/python -m pytest tests/launching/test_engines.py tests/trackers/test_choose.py

# A generator without plugins, in an environment of its own: it shares no dependency with us.
$(SITE)/.ready: constraints.txt
	python3 -m venv --clear $(SITE)
	$(SITE)/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt zensical
	touch $@

docs: $(READY) $(SITE)/.ready  ## build the docs site in .site/html; a dead link is an error
	$(PYTHON) docs/build_site.py .site
	$(SITE)/bin/zensical build --clean --strict --config-file .site/zensical.toml

format: $(READY)  ## rewrite the code the way `make check` wants it
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

clean:  ## remove the virtual environments and caches
	rm -rf $(VENV) $(BENCH) $(ENGINES) $(SITE) .site .pytest_cache .ruff_cache .import_linter_cache
