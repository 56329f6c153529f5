# Two commands do everything: `make demo` and `make test`. Both set up .venv first, when pyproject.toml or
# constraints.txt have changed since.

# The machine's own Python where it will do; name another one: make demo PYTHON=/path/to/python3.12
PYTHON ?= $(firstword $(foreach python,python3 python3.12 python3.11,$(shell \
	$(python) -c 'import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info < (3, 13))' 2>/dev/null \
	&& echo $(python))))

# Where torch comes from. By default: pip's own index, but PyTorch's index of CPU builds on a Linux machine without an
# NVIDIA GPU, wherever that index can be reached, for the default build brings gigabytes of CUDA.
TORCH_INDEX ?=
CPU_TORCH_INDEX := https://download.pytorch.org/whl/cpu

VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
UNFINISHED := $(VENV)/.unfinished
NATIVE := engine/native/built/.made
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet --progress-bar off

.PHONY: demo test chaos fuzz compose-test observe-test k8s-test docs lint setup clean

# KEEP=1: it goes on until Ctrl-C, so that one can look at its console.
demo: setup
	@$(BIN)/python -m orcastream.cli.demo $(if $(KEEP),--keep)

# Test processes side by side, at most 8. What needs no server computes, so there is one for each core. What needs one waits
# most of the time, for leases that run out and processes that start, so there are two for each core, as long as memory
# lasts: one takes 1.5 GiB with its services. One after the other and in one process: make test TEST_WORKERS=0
TEST_CORES := $(shell cores=$$(OMP_NUM_THREADS= nproc); echo $$((cores < 8 ? cores : 8)))
TEST_WORKERS ?= $(shell cores=$(TEST_CORES); fit=$$(awk '/^MemAvailable/ {print int($$2 / 1572864)}' /proc/meminfo); \
	most=$$((cores < 4 ? 2 * cores : 8)); most=$$((fit < most ? fit : most)); echo $$((most > cores ? most : cores)))

# Both halves load the same sources, so compiled files are kept, whatever the environment says of them. A worker that
# has nothing left takes over half of what another has still to do, and neighbours, which share fixtures, stay together.
PYTEST := PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest --dist worksteal --numprocesses
COMPUTING := $(shell test $(TEST_WORKERS) -lt $(TEST_CORES) && echo $(TEST_WORKERS) || echo $(TEST_CORES))

# What needs no server comes first: a mistake in the thick of it shows within a minute or two. AGAIN=1, as CI has it: what
# failed beside others runs once more, alone; what then passes is named at the end, and is still a defect to be found.
ALONE := $(PYTEST) 0 --last-failed --last-failed-no-failures none --maxfail 1 -rp

test: setup
	$(PYTEST) $(COMPUTING) -m 'not server'
	$(PYTEST) $(TEST_WORKERS) -m server $(if $(AGAIN),|| $(ALONE) -m server)

# Faults at random under load, and everything checked: docs/chaos.md.
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

# Needs a container engine with Compose. BASE_IMAGE and the mirrors of docs/compose.md go on to the build.
compose-test: setup
	@$(BIN)/python -m tests.compose.run

# What dashboards and alerts say while workers die, on real Prometheus servers: docs/operations.md. Needs prometheus with
# promtool (Debian: package prometheus) on PATH, or in directories that ORCASTREAM_TEST_PROMETHEUS names; with collector, Loki
# and Tempo in directories that ORCASTREAM_TEST_STORES names, OTLP goes Compose's way.
observe-test: setup
	@$(BIN)/python -m tests.observe.run $(if $(PICTURES),--pictures $(PICTURES))

# The manifests in k8s/ and the Dockerfile, looked at by kubectl, Helm, kubernetes-validate, checkov and hadolint. An
# environment of its own, for checkov wants other versions of what the project uses, and without the project's own
# settings for pytest.
K8S_VENV ?= .venv-k8s

k8s-test: $(K8S_VENV)/.ready
	$(K8S_VENV)/bin/python -m pytest -c /dev/null --rootdir . --noconftest -q -p no:cacheprovider tests/k8s/test_chart*.py
	$(K8S_VENV)/bin/python -m tests.k8s.check

# The pages of docs/ as a site in build/site; fails on a warning, or where a page would load something from elsewhere.
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

# Both at once: pip unpacks with one core, and the compiler needs nothing of what pip brings.
setup:
	@$(MAKE) --silent --jobs 2 $(READY) $(NATIVE)

# A set-up that was interrupted leaves UNFINISHED behind and is begun anew. PIP_CONSTRAINT and PIP_BUILD_CONSTRAINT
# pin what builds the package, too; which of them counts depends on pip's version.
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

# The operators for this machine's CPU. Without a compiler (exit status 3) torch's own serve, and the next make asks anew.
$(NATIVE): engine/native/src $(wildcard engine/native/*.py engine/native/src/*)
	@echo "Compiling the CPU operators ..."
	@$(or $(PYTHON),$(BIN)/python) -m orcastream.engine.native.build && touch $@ || test $$? = 3

clean:
	rm -rf $(VENV) engine/native/built $(K8S_VENV) $(DOCS_VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
