# Every target first makes and fills .venv (scripts/setup.sh), which costs nothing once it is done.
.DEFAULT_GOAL := help
SHELL := /bin/bash
bin := .venv/bin

# Spinning OpenMP threads beside a server's own threads make both many times slower (docs/installing.md).
export OMP_NUM_THREADS ?= 1

# GPU=1 fills .venv with the CUDA build of vLLM instead of the CPU build; a .venv that has it keeps it, GPU= goes back.
GPU ?= $(shell grep -qsx gpu .venv/setup-build && echo 1)

.PHONY: help
help: ## Show this list
	@sed -nE 's/^([a-z]+):.*## (.*)/make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 16

.PHONY: setup
setup: ## Make .venv and fill it with the pinned packages (GPU=1: for an NVIDIA GPU)
	@scripts/setup.sh $(if $(filter-out 0,$(GPU)),--gpu)

.PHONY: weights
weights: setup ## Fetch the embedded speech and language models
	@$(bin)/metronome models fetch

.PHONY: demo
demo: weights ## Hold a spoken conversation with the real server and check it
	@$(bin)/metronome demo $(ARGS)

.PHONY: serve
serve: weights ## Serve at http://127.0.0.1:8000 (ARGS="--port 9000" …)
	@$(bin)/metronome serve $(ARGS)

.PHONY: lint
lint: setup ## Formatting, lint, types and import contracts
	@$(bin)/ruff format --check .
	@$(bin)/ruff check .
	@$(bin)/mypy
	@$(bin)/lint-imports
	@$(bin)/shellcheck scripts/*.sh bench/*.sh .ci/run
	@$(bin)/hadolint Dockerfile

.PHONY: check
check: lint ## lint and the fast tests, in under a minute
	@$(bin)/python -m pytest -q -m "not slow and not vllm and not embedded and not browser and not gpu and not models" --ignore=tests/clients

.PHONY: clients
clients: setup ## Run the stock Realtime clients against a real server; writes docs/compatibility.md
	@scripts/clients.sh
	@$(bin)/python -m pytest -q -rs tests/clients --write-document

.PHONY: test
test: lint weights ## Everything .ci/run runs: lint and all tests
	@scripts/clients.sh || echo "test: the stock clients that are missing are skipped"
	@$(bin)/python -m pytest -q -rs || { \
		echo "test: what failed is run once more, alone: a busy machine fails once, a bug fails again"; \
		$(bin)/python -m pytest -q -rs --last-failed --last-failed-no-failures none; }

.PHONY: format
format: setup ## Rewrite the code in the project's format
	@$(bin)/ruff format .
	@$(bin)/ruff check --fix .

.PHONY: clean
clean: ## Remove .venv, caches and results (not the fetched weights)
	@rm -rf .venv .venv-clients tests/clients/node/node_modules .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache build dist out *.egg-info
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
