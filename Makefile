# Every target sets up what it needs in .venv, from the lock file.
.DEFAULT_GOAL := help
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
JOBS ?= 1
BENCH := $(VENV)/.ready-bench

.PHONY: help demo test test-slow test-unit lint drill bench reference lock audit helm image clean

help: ## show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/:/' | column -t -s:

demo: $(READY) ## learn a dictionary from a stream and watch it converge
	$(BIN)/stream-ocpdl demo

test: $(READY) ## the tests, but those that take minutes; JOBS=2: in two processes, each with a broker
	$(BIN)/python -m pytest $(if $(filter-out 1,$(JOBS)),-n $(JOBS) --dist loadfile)

test-slow: $(READY) ## the tests that take minutes: brokers that die, replicas in a storm
	OCPDL_SLOW=1 $(BIN)/python -m pytest -m slow

test-unit: $(READY) ## the tests that need no broker
	$(BIN)/python -m pytest -m "not broker"

lint: $(READY) ## ruff and mypy --strict
	$(BIN)/ruff check --output-format concise .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

drill: $(READY) ## deploy, stream, kill, recover, hand over, go back, verify: a checklist, on a real Kafka
	$(BIN)/python -m tests.drill

bench: $(BENCH) ## measure, and write it to benchmarks/results; ARGS="limit peers --quick" for some of it
	$(BIN)/python -m benchmarks $(ARGS)

reference: $(READY) ## write what is generated: schema and table of the settings, table of the metrics, alerts, dashboard, SBOM
	$(BIN)/python -m tests.reference

lock: $(READY) ## resolve the lock files anew from pyproject.toml
	$(BIN)/pip install -q uv
	$(BIN)/uv pip compile pyproject.toml --extra test --extra lint $(LOCK) -o requirements/dev.lock
	$(BIN)/uv pip compile pyproject.toml -c requirements/dev.lock $(LOCK) -o requirements/run.lock
	echo hatchling | $(BIN)/uv pip compile - -c requirements/dev.lock $(LOCK) -o requirements/build.lock
	$(BIN)/uv pip compile pyproject.toml --extra bench -c requirements/dev.lock $(LOCK) -o requirements/bench.lock
LOCK := --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header --no-annotate -q

audit: requirements/run.lock ## whether a package in the lock files has known weaknesses: it asks PyPI, and so needs the network
	test -x build/audit/bin/pip-audit || { $(PYTHON) -m venv build/audit && build/audit/bin/pip install -q pip-audit; }
	for lock in run build dev; do \
	  build/audit/bin/pip-audit --strict --require-hashes --disable-pip -r requirements/$$lock.lock || exit 1; \
	done

helm: ## build Helm, with which the chart is tested, where there is none: it takes Go, and minutes
	@command -v helm >/dev/null || test -x build/bin/helm \
	  || GOBIN=$(CURDIR)/build/bin go install -ldflags "-s -w" helm.sh/helm/v3/cmd/helm@v3.19.0

image: ## the service as an image
	docker build --build-arg REVISION=$$(git rev-parse HEAD) -t stream-ocpdl:0.1.0 .

clean: ## remove what the other targets made
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "stream_ocpdl needs Python 3.11 or newer; say which: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(READY): requirements/dev.lock pyproject.toml | $(VENV)/bin/python
	$(BIN)/pip install --disable-pip-version-check -q --require-hashes -r requirements/dev.lock
	$(BIN)/pip install --disable-pip-version-check -q --no-deps --no-build-isolation -e .
	@touch $@

$(BENCH): requirements/bench.lock $(READY)
	$(BIN)/pip install --disable-pip-version-check -q --require-hashes -r requirements/bench.lock
	@touch $@
