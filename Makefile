# make demo: set everything up and run the main job on the embedded toy model.  make test: set up and test.
PYTHON ?= python3
BIN := .venv/bin
export HF_HUB_OFFLINE ?= 1

.PHONY: demo test test-faults test-gpu test-cloud test-image lint lock clean

demo: .venv/ready
	$(BIN)/python entrypoint.py run --profile cpu --output-dir out/demo --overwrite

test: .venv/ready
	$(BIN)/python -m pytest -q -n 2 --dist loadfile -m 'not cloud and not image'

# Kill runs, and tell them to stop, at every point, by signal, storage and number of ranks, and start them again (hours;
# a few of these are in `make test`). FAULTS="--store bucket --signal TERM" does a part.
test-faults: .venv/ready
	$(BIN)/python -m tests.faults $(FAULTS)

# On a machine with GPUs: the toy model through bf16, NF4 and FSDP2 on the real cards.
test-gpu: .venv/ready
	$(BIN)/python -m pytest -q -m gpu tests/test_gpu.py

# The README's commands for Google Cloud through the real gcloud, kubectl and envsubst, against stand-ins.
test-cloud: .venv/ready
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m pytest -q -m cloud tests/test_cloud.py

# Build the image with buildah, run it with podman (as root; some ten minutes).
test-image: .venv/ready
	$(BIN)/python -m pytest -q -s -m image tests/test_image.py

lint: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/yamllint --strict .
	$(BIN)/hadolint Dockerfile
	$(BIN)/shellcheck .ci/run

# The lock holds exact versions for Python 3.11 and later; pip takes it as constraints, so that one file
# serves the image (without the dev tools), this Makefile and CI.
.venv/ready: pyproject.toml requirements.lock
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "error: Python 3.11 or later is needed, '$(PYTHON)' is older; try: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --progress-bar off --constraint requirements.lock --editable '.[dev]'
	@touch $@

lock:
	uv pip compile pyproject.toml --all-extras --universal --python-version 3.11 \
		--no-header --no-annotate --upgrade --output-file requirements.lock

clean:
	rm -rf .venv out
