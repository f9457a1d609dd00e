# make serve   start the service (ARGS="--listen amqp://127.0.0.1:5672 ...")
# make test    everything: format, lint, types, import directions, tests (ARGS="tests/unit -k ..." to choose)
#
# Both start from a clean clone: .ci/bootstrap makes .venv first, and does nothing when it is there.

BIN := .venv/bin
ARGS ?=

.PHONY: serve test test-quick check format lock rules bench fuzz demo clean

serve:
	@.ci/bootstrap serve
	@exec $(BIN)/coordinator serve $(ARGS)

test: check
	$(BIN)/python -m pytest $(ARGS)

# The pure rules only: seconds, no PostgreSQL, no service.
test-quick:
	@.ci/bootstrap test
	$(BIN)/python -m pytest tests/unit $(ARGS)

check:
	@.ci/bootstrap test
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format:
	@.ci/bootstrap test
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# Writes requirements/*.txt anew from setup.cfg, at the newest versions it allows.
LOCK := $(BIN)/uv pip compile --quiet --upgrade --universal --python-version 3.11 --generate-hashes --no-config \
	--no-emit-index-url --no-emit-find-links --custom-compile-command "make lock"
lock:
	@.ci/bootstrap test
	$(LOCK) requirements/build.in --output-file requirements/build.txt
	$(LOCK) setup.cfg --constraints requirements/build.txt --output-file requirements/serve.txt
	$(LOCK) requirements/proton.in --constraints requirements/serve.txt --output-file requirements/proton.txt
	$(LOCK) setup.cfg --extra test --constraints requirements/build.txt --constraints requirements/serve.txt \
		--output-file requirements/test.txt

# Which rules of docs/reference/rules.md passed in the last run of the tests, and which have no test yet.
rules:
	@.ci/bootstrap test
	@$(BIN)/python -m tests.rules

bench:
	@.ci/bootstrap test
	$(BIN)/python -m tests.benchmarks.run $(ARGS)

# Fuzzes a service of its own for as long as it is told to: 10,000,000 frames are ARGS="--frames 10000000 --seed 1"
# What fails is written to build/fuzz and seen again with ARGS="--replay FILE".
fuzz:
	@.ci/bootstrap test
	$(BIN)/python -m tests.fuzz.run $(ARGS)

demo:
	@.ci/bootstrap test
	$(BIN)/python examples/demo.py $(ARGS)

clean:
	rm -rf .venv build *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
