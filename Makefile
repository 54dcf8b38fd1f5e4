# Everything a person or the CI does with this checkout. `make help` lists it.
#
# The environment is made when a target needs it and made good when pyproject.toml or the lock changes. Variables:
#   PYTHON=python3.12   the interpreter the environment is made with (3.11 or later)
#   VENV=.venv          where the environment lies
#   RUNS=runs           where demo runs keep checkpoints, logs and exports
#   ARGS="-n 2"         arguments for pytest; two processes unless told otherwise, see CONTRIBUTING.md

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV ?= .venv
RUNS ?= runs
ARGS ?= -n 2 --dist loadfile
# Most programs of the tests run for a moment and take seconds to compile, most of them for machine code that is fast.
# XLA's own passes stay, and `make test-large`, which measures too, has it all. Without the emitters of fusions, which go
# through MLIR, compiling takes little more than half as long.
TEST_XLA_FLAGS ?= --xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false

MOST_PROGRAMS := tests/layers/test_contract_models.py

LOCK := requirements/lock.txt
READY := $(VENV)/.ready
RUN := $(VENV)/bin/python
PYTEST = XLA_FLAGS="$(XLA_FLAGS) $(TEST_XLA_FLAGS)" $(RUN) -m pytest -q
FULL = $(PYTEST) -m 'not large' --hypothesis-profile=full
DEMO := tf_sparse_attention/trainers/configs/demo.py
# Bits per byte, of two seeds: docs/quality.md. The text is this Python's own library, so another Python has other scores.
DEMO_SCORE := 1.28
DEMO_LOCAL_SCORE := 1.57

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

# $(call new_environment,FOLDER): a virtual environment there, unless a working one is there already.
define new_environment
@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
  echo "Python 3.11 or later is needed. Received: PYTHON=$(PYTHON). Say which one: make PYTHON=/path/to/python3.11" >&2; exit 1; }
@$(1)/bin/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(1)
endef

$(READY): pyproject.toml $(LOCK)
	$(call new_environment,$(VENV))
	$(RUN) -m pip install --quiet --constraint $(LOCK) --editable '.[dev]'
	@touch $@

.PHONY: help
help: ## List these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# The subwords of the demo's text, found once.
$(RUNS)/demo.subwords: | $(READY)
	$(RUN) -m tf_sparse_attention.trainers.vocabulary --config=$(DEMO) --size=2000 --output=$@

.PHONY: demo
demo: $(READY) $(RUNS)/demo.subwords ## Train, evaluate, sample from and export a routing language model (10 minutes on 2 cores)
	$(RUN) -m tf_sparse_attention.trainers.train --config=$(DEMO) --config.data.vocabulary=$(RUNS)/demo.subwords --workdir=$(RUNS)/demo
	$(RUN) -m tf_sparse_attention.trainers.evaluate --workdir=$(RUNS)/demo --split=test
	@echo "On the library of CPython 3.11.7 it has $(strip $(DEMO_SCORE)) bits per byte, and with local heads only, in as many"
	@echo "weights and steps, $(strip $(DEMO_LOCAL_SCORE)); \`make demo-compare\` measures both on the library of this Python."
	$(RUN) -m tf_sparse_attention.trainers.generate --workdir=$(RUNS)/demo
	$(RUN) -m tf_sparse_attention.trainers.export --workdir=$(RUNS)/demo

.PHONY: demo-compare
demo-compare: $(READY) $(RUNS)/demo.subwords ## Train the demo model with and without routed heads and print both scores
	$(RUN) -m tf_sparse_attention.trainers.train --config=$(DEMO) --config.data.vocabulary=$(RUNS)/demo.subwords --workdir=$(RUNS)/demo
	$(RUN) -m tf_sparse_attention.trainers.train --config=$(DEMO):local --config.data.vocabulary=$(RUNS)/demo.subwords --workdir=$(RUNS)/demo-local
	@echo "Local and routed heads:"
	$(RUN) -m tf_sparse_attention.trainers.evaluate --workdir=$(RUNS)/demo --split=test
	@echo "Local heads only:"
	$(RUN) -m tf_sparse_attention.trainers.evaluate --workdir=$(RUNS)/demo-local --split=test

.PHONY: quality
quality: $(READY) ## Train small models of several kinds of heads on real text and print what they are worth
	$(RUN) -m benchmarks.quality --set=quick

.PHONY: quality-full
quality-full: $(READY) ## The whole study, in hours; TEXTS="--text=books=FOLDER --text=wiki_xml=FILE"
	$(RUN) -m benchmarks.quality --set=full $(TEXTS)

.PHONY: tasks
tasks: $(READY) ## Train, kill, resume, evaluate, sample from and export a small model of every task (15 minutes)
	$(RUN) -m benchmarks.tasks --workdir=$(RUNS)/tasks

.PHONY: faults
faults: $(READY) ## Kill trainings, fill their disk, damage their files and so on, and print what they survive (an hour or two)
	$(RUN) -m benchmarks.faults --workdir=$(RUNS)/faults $(ROWS)

.PHONY: test
test: $(READY) ## Run the tests, one case of everything (8 minutes on 2 cores)
	$(PYTEST) $(ARGS)

.PHONY: test-pages
test-pages: $(READY) ## Run the notebooks, the README, the pages and the examples of docstrings (4 minutes)
	$(PYTEST) -m 'pages and not full and not large' $(ARGS)

.PHONY: test-full
test-full: $(READY) ## Run all tests and pages but the slow proofs, with more drawn examples (40 minutes)
	@# In four runs: programs that XLA compiled stay in memory, and mapped, to the end of a process. With two processes
	@# those of all layers and models together take more than 16 GB.
	$(FULL) $(ARGS) --dist load $(MOST_PROGRAMS)
	$(FULL) $(ARGS) --ignore=$(MOST_PROGRAMS) tests/layers
	$(FULL) $(ARGS) tests/trainers tests/integration tests/benchmarks
	$(FULL) $(ARGS) --ignore=tests/layers --ignore=tests/trainers --ignore=tests/integration --ignore=tests/benchmarks

.PHONY: test-large
test-large: $(READY) ## Run the slow proofs, that some process survives being killed for example
	$(RUN) -m pytest -q -m large $(ARGS)

.PHONY: test-environments
test-environments: $(READY) ## Run core tests with the oldest and the newest TensorFlow, and with JAX alone (half an hour)
	$(RUN) -m tests.environments

.PHONY: lint
lint: $(READY) ## Check the code's form and types and find likely mistakes
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .
	$(RUN) -m mypy

.PHONY: format
format: $(READY) ## Bring the code into form and mend what can be mended by machine
	$(RUN) -m ruff check --fix .
	$(RUN) -m ruff format .

.PHONY: goldens
goldens: $(READY) ## Print how far results are from the published numbers (2 minutes)
	$(RUN) -m tests.golden_table

.PHONY: bench
bench: $(READY) ## Time and memory of attention against length, beside dense attention
	$(RUN) -m benchmarks.attention

# JAX for TPUs lives in an environment of its own: libtpu is large, Linux only, and no part of the tests.
TPU_VENV := .venv-tpu
TPU_READY := $(TPU_VENV)/.ready

# $(call without_tpu,MODULE): run a module for TPUs, or say why it cannot be.
define without_tpu
$(call new_environment,$(TPU_VENV))
@if [ $(TPU_READY) -nt $(LOCK) ] || { \
  $(TPU_VENV)/bin/python -m pip install --quiet --constraint $(LOCK) 'jax[tpu]' keras 2>$(TPU_VENV)/pip.log && \
  touch $(TPU_READY); }; \
then KERAS_BACKEND=jax $(TPU_VENV)/bin/python -m $(1); \
else echo "$@ skipped: jax[tpu] cannot be installed here:"; tail -n 3 $(TPU_VENV)/pip.log; fi
endef

.PHONY: tpu-check
tpu-check: ## Compile layers and a training step for a TPU, without having one
	$(call without_tpu,benchmarks.tpu_check)

.PHONY: tpu-roofline
tpu-roofline: ## Print what attention moves and computes on a TPU, beside dense and splash attention, without having one
	$(call without_tpu,benchmarks.tpu_roofline)

# The site is built by tools in an environment of their own. They read the source without importing it.
DOCS_LOCK := requirements/docs.txt
DOCS_VENV := .venv-docs
DOCS_READY := $(DOCS_VENV)/.ready
DOCS_EXTRA := $(PYTHON) -c 'import tomllib; \
  print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["docs"], sep="\n")'

$(DOCS_READY): pyproject.toml $(DOCS_LOCK)
	$(call new_environment,$(DOCS_VENV))
	$(DOCS_EXTRA) | $(DOCS_VENV)/bin/python -m pip install --quiet --constraint $(DOCS_LOCK) --requirement /dev/stdin
	@touch $@

.PHONY: docs
docs: $(READY) $(DOCS_READY) ## Draw the pictures and build the pages into site/; a broken link is an error
	$(RUN) -m docs.draw_patterns
	$(RUN) -m docs.draw_speech
	@# Not --quiet, which also keeps warnings from --strict.
	NO_MKDOCS_2_WARNING=1 PATH="$(CURDIR)/$(DOCS_VENV)/bin:$$PATH" $(DOCS_VENV)/bin/python -m mkdocs build --strict
	@echo "The pages are in site/index.html."

# The address stands in pyproject.toml, whose own is the one to replace.
ADDRESSED := pyproject.toml README.md $(wildcard colabs/*.ipynb)

.PHONY: address
address: ## Write REPOSITORY=https://... where the address stands, notebooks too, for who publishes the project
	@case "$(REPOSITORY)" in https://*) ;; *) \
	  echo "\`make address\` needs REPOSITORY=https://... Received: REPOSITORY=$(REPOSITORY)" >&2; exit 1;; esac
	@old=$$($(PYTHON) -c 'import tomllib; print(tomllib.load(open("pyproject.toml", "rb"))["project"]["urls"]["Repository"])') && \
	  sed -i.old "s|$$old|$(REPOSITORY)|g" $(ADDRESSED) && rm $(ADDRESSED:=.old)

.PHONY: lock
lock: ## Write requirements/ from the newest versions that pyproject.toml allows
	$(call new_environment,.venv-lock)
	.venv-lock/bin/python -m pip install --quiet --upgrade --upgrade-strategy eager --editable '.[dev]'
	{ sed -n '/^#/p' $(LOCK); .venv-lock/bin/python -m pip freeze --exclude-editable; } > $(LOCK).new
	mv $(LOCK).new $(LOCK)
	$(call new_environment,.venv-lock-docs)
	$(DOCS_EXTRA) | .venv-lock-docs/bin/python -m pip install --quiet --upgrade --upgrade-strategy eager --requirement /dev/stdin
	{ sed -n '/^#/p' $(DOCS_LOCK); .venv-lock-docs/bin/python -m pip freeze; } > $(DOCS_LOCK).new
	mv $(DOCS_LOCK).new $(DOCS_LOCK)
