# Everything runs in .venv, made on first use from setup.cfg alone, and anew where
# PYTHON is given and another.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: always quickstart test test-slow test-jax test-torch check format \
	reference clean

quickstart: $(VENV)/installed
	$(BIN)/python examples/quickstart/quickstart.py

# A module's tests share what its fixtures make: one process for each module.
# What they compile runs once, and is not optimised.
test: $(VENV)/installed
	XLA_FLAGS=--xla_backend_optimization_level=0 $(BIN)/python -m pytest -q -n 2 --dist loadscope -m "not slow"

test-slow: $(VENV)/installed
	$(BIN)/python -m pytest -q -n 2 --dist worksteal -m slow -rs

# The core on its second backend. What it compiles is not optimised, as that would
# take longer than the tests, nor fused, if XLA knows the flag: it ends a program
# that passes one it does not know.
NO_FUSIONS := --xla_cpu_use_fusion_emitters=false

test-jax: $(VENV)/installed
	export KERAS_BACKEND=jax JAX_DISABLE_MOST_OPTIMIZATIONS=1; \
	XLA_FLAGS="$$XLA_FLAGS $(NO_FUSIONS)" $(BIN)/python -c "import jax; jax.devices()" 2>/dev/null \
		&& export XLA_FLAGS="$$XLA_FLAGS $(NO_FUSIONS)"; \
	$(BIN)/python -m pytest -q -n 2 --dist loadscope -m "not slow" tests/core

# PyTorch as a backend, and as what Marian's weights are compared with.
test-torch: $(VENV)/installed
	$(BIN)/python -m pip install -q --disable-pip-version-check torch transformers
	$(BIN)/python -m pytest -q tests/test_backends.py tests/test_marian.py

check: $(VENV)/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python -m pytest -q -m "not slow" tests/test_documentation.py

format: $(VENV)/installed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# A Python that is given may be another than that of .venv: look each time.
ifneq ($(origin PYTHON),file)
$(VENV)/installed: always
endif

$(VENV)/installed: setup.cfg pyproject.toml
	{ test "$(origin PYTHON)" = file || \
		test "$$($(PYTHON) -V)" = "$$($(BIN)/python -V 2>/dev/null)"; } \
		&& $(BIN)/python -m pip --version >/dev/null 2>&1 \
		|| $(PYTHON) -m venv --clear $(VENV)
	$(BIN)/python -m pip install -q --disable-pip-version-check -e ".[dev]"
	touch $@

# A page of all public names: signatures and docstrings.
REFERENCE := build/reference
reference: $(VENV)/installed
	$(BIN)/python -W ignore -m pdoc --docformat google --no-show-source \
		--output-directory $(REFERENCE) keras_transformer
	@echo "Written: open $(REFERENCE)/keras_transformer.html in a browser."

clean:
	rm -rf $(VENV) $(REFERENCE)
