# The two main commands are `make demo` and `make test`. Both first set up .venv if pyproject.toml or constraints.txt
# have changed.

# The machine's own Python if it is suitable; to use another one: make demo PYTHON=/path/to/python3.12
PYTHON ?= $(firstword $(foreach python,python3 python3.12 python3.11,$(shell \
	$(python) -c 'import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info < (3, 13))' 2>/dev/null \
	&& echo $(python))))

# The index for torch. Default: pip's own index; on a Linux machine without an NVIDIA GPU, PyTorch's index of CPU builds
# if it is reachable, because the default build includes gigabytes of CUDA.
TORCH_INDEX ?=
CPU_TORCH_INDEX := https://download.pytorch.org/whl/cpu

VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
UNFINISHED := $(VENV)/.unfinished
NATIVE := engine/native/built/.made
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet --progress-bar off

.PHONY: demo test chaos fuzz compose-test observe-test k8s-test docs lint setup clean

# KEEP=1: keep serving until Ctrl-C, so that you can look at the console.
demo: setup
	@$(BIN)/python -m orcastream.cli.demo $(if $(KEEP),--keep)

# Parallel test processes, at most 8. Tests without a server compute, so there is one process per core. Tests with a
# server mostly wait, for leases to expire and processes to start, so there are three per core, as long as memory
# suffices: one takes 1.5 GiB with its services. To run tests sequentially in one process: make test TEST_WORKERS=0
TEST_CORES := $(shell cores=$$(OMP_NUM_THREADS= nproc); echo $$((cores < 8 ? cores : 8)))
TEST_WORKERS ?= $(shell cores=$(TEST_CORES); fit=$$(awk '/^MemAvailable/ {print int($$2 / 1572864)}' /proc/meminfo); \
	most=$$((cores < 3 ? 3 * cores : 8)); most=$$((fit < most ? fit : most)); echo $$((most > cores ? most : cores)))

# Both halves load the same sources, so compiled files are kept, whatever the environment says. An idle test process takes
# over half of another's remaining tests, and neighboring tests, which share fixtures, stay together.
PYTEST := PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest --dist worksteal --numprocesses
COMPUTING := $(shell test $(TEST_WORKERS) -lt $(TEST_CORES) && echo $(TEST_WORKERS) || echo $(TEST_CORES))

# Tests without a server run first: basic mistakes show within a minute or two. AGAIN=1, as in CI: tests that failed run
# once more, alone; those that then pass are named at the end, and are still defects to investigate.
ALONE := $(PYTEST) 0 --last-failed --last-failed-no-failures none --maxfail 1 -rp

test: setup
	$(PYTEST) $(COMPUTING) -m 'not server'
	$(PYTEST) $(TEST_WORKERS) -m server $(if $(AGAIN),|| $(ALONE) -m server)

# Random faults under load, with every result checked: docs/chaos.md.
MINUTES ?= 15
SEED ?= 1
MODE ?= always
FAULTS ?= all

chaos: setup
	@$(BIN)/python -m tests.chaos.run --minutes $(MINUTES) --seed $(SEED) --mode $(MODE) --faults $(FAULTS) $(if $(JSON),--json $(JSON))

# Malformed entries, keys and HTTP requests from a seeded fuzzer: docs/guarantees.md.
COUNT ?= 100000

fuzz: setup
	@$(BIN)/python -m tests.fuzz.run --count $(COUNT) --seed $(SEED) $(if $(JSON),--json $(JSON))

# Needs a container engine with Compose. BASE_IMAGE and the mirrors of docs/compose.md are passed to the build.
compose-test: setup
	@$(BIN)/python -m tests.compose.run

# Dashboards and alerts while workers die, on real Prometheus servers: docs/operations.md. Needs prometheus with promtool
# (Debian: package prometheus) on PATH, or in directories that ORCASTREAM_TEST_PROMETHEUS names; with collector, Loki and
# Tempo in directories that ORCASTREAM_TEST_STORES names, OTLP takes the same route as in Compose.
observe-test: setup
	@$(BIN)/python -m tests.observe.run $(if $(PICTURES),--pictures $(PICTURES))

# Checks the manifests in k8s/ and the Dockerfile with kubectl, Helm, kubernetes-validate, checkov and hadolint. It has its
# own environment, because checkov needs other versions of the project's dependencies, and ignores the project's pytest
# settings.
K8S_VENV ?= .venv-k8s

k8s-test: $(K8S_VENV)/.ready
	$(K8S_VENV)/bin/python -m pytest -c /dev/null --rootdir . --noconftest -q -p no:cacheprovider tests/k8s/test_chart*.py
	$(K8S_VENV)/bin/python -m tests.k8s.check

# Builds docs/ as a site in build/site; fails on a warning, or if a page would load anything from another site.
DOCS_VENV ?= .venv-docs

docs: $(DOCS_VENV)/.ready
	NO_MKDOCS_2_WARNING=1 $(DOCS_VENV)/bin/mkdocs build --strict --quiet
	$(DOCS_VENV)/bin/python docs/site/check.py build/site
	@echo "build/site/index.html"

$(K8S_VENV)/.ready: tests/k8s/requirements.txt
$(DOCS_VENV)/.ready: docs/site/requirements.txt

$(K8S_VENV)/.ready $(DOCS_VENV)/.ready:
	@echo "Setting up $(@D): a minute the first time ..."
	@test -x $(@D)/bin/python || $(PYTHON) -m venv $(@D)
	@$(@D)/bin/python -m pip --disable-pip-version-check install --quiet --progress-bar off --requirement $<
	@touch $@

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy docs/examples/client_sync.py docs/examples/client_async.py
	$(BIN)/lint-imports

# Both at once: pip unpacks on one core, and the compiler needs nothing that pip installs.
setup:
	@$(MAKE) --silent --jobs 2 $(READY) $(NATIVE)

# An interrupted setup leaves UNFINISHED and starts over. PIP_CONSTRAINT and PIP_BUILD_CONSTRAINT also pin the packages
# that build this one; which of the two applies depends on pip's version.
$(READY): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "Orcastream needs Python 3.11 or 3.12 with its venv module:" \
		"apt-get install python3 python3-venv, or name one: make PYTHON=/path/to/python3.12 $(MAKECMDGOALS)" >&2; exit 1; }
	@echo "Setting up $(VENV): some minutes the first time ..."
	@test -x $(BIN)/python -a ! -e $(UNFINISHED) || rm -rf $(VENV)
	@mkdir -p $(VENV) && touch $(UNFINISHED)
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@index="$(TORCH_INDEX)"; \
	if test -z "$$index" -a "$$(uname -s)" = Linux -a ! -e /dev/nvidiactl && $(BIN)/python -c \
		'import sys, urllib.request; urllib.request.urlopen(sys.argv[1], timeout=5)' $(CPU_TORCH_INDEX)/torch/ 2>/dev/null; \
	then index=$(CPU_TORCH_INDEX); fi; \
	test -z "$$index" || $(PIP) --no-deps --index-url "$$index" "$$(grep '^torch==' constraints.txt)"
	@ORCASTREAM_NATIVE=0 PIP_CONSTRAINT=constraints.txt PIP_BUILD_CONSTRAINT=constraints.txt $(PIP) --constraint constraints.txt --editable '.[dev]'
	@touch $@ && rm $(UNFINISHED)

# The operators for this machine's CPU. Without a compiler (exit status 3) torch's own are used; the next make tries again.
$(NATIVE): engine/native/src $(wildcard engine/native/*.py engine/native/src/*)
	@echo "Compiling the CPU operators ..."
	@$(or $(PYTHON),$(BIN)/python) -m orcastream.engine.native.build && touch $@ || test $$? = 3

clean:
	rm -rf $(VENV) engine/native/built $(K8S_VENV) $(DOCS_VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
