.PHONY: demo test test-jax check bench bench-full docs help

PYTHON ?= python3
BIN := .venv/bin

help:  ## What there is to make
	@grep -E '^[a-z-]+:.*##' Makefile | sed 's/:.*##/\t/'

# Set up once, and again when the dependencies change.
.venv/ready: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "vcl needs Python 3.11 or newer; name one: make PYTHON=python3.12 ..."; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade "pip>=25.1"
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	@touch $@

demo: .venv/ready  ## VCL on split MNIST: five tasks in a row, a table and a report at the end
	$(BIN)/vcl run split-mnist --out runs/demo
	$(BIN)/vcl report runs/demo/split-mnist-* --out runs/demo/report.html

test: .venv/ready  ## The tests
	$(BIN)/python -m pytest --numprocesses auto --dist loadgroup --no-loadscope-reorder

# The oldest and the newest version of JAX that are supported, each in an environment of its own.
JAX ?= 0.7.0 0.10.2
JAX_TESTS := tests/test_gaussian.py tests/test_training.py tests/test_noise.py tests/test_networks.py tests/test_model.py

test-jax:  ## Short tests with the oldest and the newest JAX, in .venv-jax-*; others: make test-jax JAX=0.8.0
	@for version in $(JAX); do \
	    environment=.venv-jax-$$version && echo "JAX $$version" && \
	    { test -x $$environment/bin/python || $(PYTHON) -m venv $$environment; } && \
	    $$environment/bin/python -m pip install --quiet --editable . jax==$$version beartype hypothesis pandas pytest pytest-xdist && \
	    VCL_TEST_CACHE=$$environment/compiled $$environment/bin/python -m pytest $(JAX_TESTS) && \
	    $$environment/bin/vcl run split-digits --epochs 2 --num-tasks 2 --out $$environment/runs --quiet || exit 1; \
	done

check: .venv/ready  ## Lint, format and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: .venv/ready  ## The documentation as a site, in build/site; needs no network
	$(BIN)/python docs/site/build.py

bench bench-full: export VCL_BENCH_OUT ?= build/bench
bench: .venv/ready  ## Speed of a step against its matrix products, cost of noise, growth and start-up (a few minutes)
	$(BIN)/python bench/step.py
	$(BIN)/python bench/noise.py
	$(BIN)/python bench/growth.py --short
	$(BIN)/python bench/startup.py

bench-full: bench  ## The same in full, two cores, every method, peak memory, and peers in an environment of their own
	$(BIN)/python bench/step.py --cores 2
	$(BIN)/python bench/growth.py
	$(BIN)/python bench/methods.py
	$(BIN)/python bench/methods.py --family split
	$(BIN)/python bench/memory.py
	$(BIN)/python bench/accuracy.py
	$(BIN)/python bench/peers.py --compile
