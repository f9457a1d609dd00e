# `make` alone prints what there is: the lines that begin with "#:" below. Every target that needs .venv begins with
# .ci/bootstrap, which makes it from a clean clone and does nothing when it is there.

BIN := .venv/bin
ARGS ?=

.PHONY: help serve dist deb test test-all test-quick check format lock sbom docs rules bench bench-peers bench-spark
.PHONY: fuzz faults kills watch-kills demo release-check clean

help:
	@sed -n 's/^#: \{0,1\}//p' Makefile

#: make serve       start the service                 ARGS="--listen amqp://127.0.0.1:5672 --workers 2"
serve:
	@.ci/bootstrap serve
	@exec $(BIN)/coordinator serve $(ARGS)

#: make dist        what is installed elsewhere: dist/   ARGS="3.12" for one version of Python
dist:
	@.ci/bootstrap check
	@.ci/dist $(ARGS)

#: make deb         a package of it for this release of Debian or Ubuntu, with the unit for systemd
deb:
	@.ci/bootstrap check
	@.ci/deb

# Each process has a PostgreSQL, a Spark and services of its own; much of their time they wait for others to start, so
# there is one more than processors.
PROCESSES := --numprocesses $(shell expr $$(nproc) + 1) --maxprocesses 4 --dist worksteal
#: make test        make check, and the tests           ARGS="tests/unit -k word" to choose
test:
	@.ci/bootstrap test
	@$(MAKE) --no-print-directory check
	$(BIN)/python -m pytest $(PROCESSES) $(ARGS)

#: make test-all    and the tests of the night: all values and forms of a case, clients in Go, Rust and C++
test-all: override ARGS += --night
test-all: test

#: make test-quick  unit tests, and the rules beside their model in one process: no Java, no service
test-quick:
	@.ci/bootstrap check
	$(BIN)/python -m pytest tests/unit tests/model/test_in_process.py $(ARGS)

#: make check       format, lint, types, import directions
check:
	@.ci/bootstrap check
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy
	$(BIN)/lint-imports

#: make format      format, and mend what the linter can
format:
	@.ci/bootstrap check
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

#: make rules       which rules of docs/reference/rules.md the last run of the tests has shown to hold
rules:
	@.ci/bootstrap serve
	@$(BIN)/python -m tests.rules

#: make bench       figures of this machine            ARGS="--help"
bench:
	@.ci/bootstrap check
	$(BIN)/python -m tests.benchmarks.run $(ARGS)

PEERS ?= post-10x8,post-100x8,post-1x8,post-1x64,retire-10x8,transfer-1x8,transfer-10x8
PEERS_JMS ?= post-1x8,post-1x64,post-10x8,transfer-1x8,transfer-10x8
#: make bench-peers the service, Artemis, Broker-J and RocketMQ in turns, by the
#:                  generator in C and by Qpid JMS; RocketMQ by its own clients
bench-peers:
	@.ci/bootstrap test
	$(BIN)/python -m tests.benchmarks.run --artemis --broker-j --rocketmq --rounds 3 --cells '$(PEERS)' $(ARGS)
	$(BIN)/python -m tests.benchmarks.run --artemis --broker-j --rounds 3 --client jms --cells '$(PEERS_JMS)' \
		--seconds 6 $(ARGS)

#: make bench-spark the reconciliation at size, beside  ARGS="--database-url URL --halves 1000000"
#:                  Spark's JDBC reader and plain SQL; the database is made anew
bench-spark:
	@.ci/bootstrap test
	$(BIN)/python -m tests.benchmarks.reconciliation $(ARGS)

# What fails is written to build/fuzz and replayed with ARGS="--replay FILE".
#: make fuzz        frames that no client sends        ARGS="--frames 10000000 --seed 1"
fuzz:
	@.ci/bootstrap check
	$(BIN)/python -m tests.fuzz.run $(ARGS)

# Needs root, for network namespaces. What is found is kept in build/faults.
#: make faults      an hour of faults under load, on machines of namespaces   ARGS="--faults 40 --seed 1"
faults:
	@.ci/bootstrap check
	$(BIN)/python -m tests.faults.run $(ARGS)

KILLS ?= 20
#: make kills       the same load, a worker killed KILLS=1000 times
kills:
	@.ci/bootstrap check
	$(BIN)/python -m tests.faults.run --kinds 'kill -9 of a worker' --faults $(KILLS) --every 1 --seconds 7200 $(ARGS)

#: make watch-kills coordinator watch, killed 20 times while messages come: each row is counted once; KILLS=100 for more
watch-kills:
	@.ci/bootstrap test
	COORDINATOR_TEST_WATCH_KILLS=$(KILLS) $(BIN)/python -m pytest -q -s \
		-o faulthandler_timeout=$$((900 + 120 * $(KILLS))) \
		tests/integration/test_watch_outcomes.py -k over_kills $(ARGS)

#: make demo        10,000 orders with crashes, without and with check-back,
#:                  then reconciled with their books
demo:
	@.ci/bootstrap test
	$(BIN)/python examples/demo.py $(ARGS)

LOCK := $(BIN)/uv pip compile --quiet --upgrade --universal --python-version 3.11 --generate-hashes --no-config \
	--no-emit-index-url --no-emit-find-links --custom-compile-command "make lock"
#: make lock        write requirements/*.txt anew from setup.cfg, at the newest versions it allows
lock:
	@.ci/bootstrap check
	$(LOCK) requirements/build.in --output-file requirements/build.txt
	$(LOCK) setup.cfg --extra all --constraints requirements/build.txt --output-file requirements/serve.txt
	$(LOCK) requirements/proton.in --constraints requirements/serve.txt --output-file requirements/proton.txt
	$(LOCK) setup.cfg --extra test --constraints requirements/build.txt --constraints requirements/serve.txt \
		--output-file requirements/test.txt
	$(LOCK) requirements/sbom.in --output-file requirements/sbom.txt
	$(LOCK) requirements/dist.in --output-file requirements/dist.txt
	$(LOCK) requirements/docs.in --output-file requirements/docs.txt
	$(LOCK) requirements/manifests.in --output-file requirements/manifests.txt
	$(LOCK) requirements/machines.in --output-file requirements/machines.txt

#: make sbom        the bill of materials of what serves: build/sbom.json, CycloneDX
sbom:
	@.ci/bootstrap check
	@mkdir -p build
	$(BIN)/uv run --quiet --no-project --no-config --python $(BIN)/python --with-requirements requirements/sbom.txt \
		cyclonedx-py requirements requirements/serve.txt --output-reproducible --output-file build/sbom.json

#: make docs        the pages as a site, links checked: build/site/index.html; to search in it,
#:                  python3 -m http.server --directory build/site
docs:
	@.ci/bootstrap check
	@$(BIN)/uv run --quiet --no-project --no-config --python $(BIN)/python --with-requirements requirements/docs.txt \
		mkdocs build --quiet --strict

#: make release-check
#:                  all that is to hold before a release, some hours: yes or no
release-check:
	@.ci/release-check

#: make clean       remove .venv and everything built
clean:
	rm -rf .venv build dist *.egg-info clients/python/build clients/python/*.egg-info \
		.mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
