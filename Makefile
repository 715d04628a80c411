# Every target sets up .venv by itself; Python >= 3.11 is all that must be there.
PYTHON ?= python3
VENV := .venv
RUN := $(VENV)/bin

.DEFAULT_GOAL := help
.PHONY: help demo test check bench bench-demo soak clean

help:  ## show the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 14

# One stamp an extra: a newcomer's demo does not wait for linters and test libraries.
$(VENV)/.installed-%: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "Python 3.11 or newer is needed; set PYTHON=/path/to/python3.11"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	@echo "installing into $(VENV): some minutes, and gigabytes where torch comes with CUDA"
	$(RUN)/pip install --quiet --editable '.[$*]'
	@touch $@

demo: $(VENV)/.installed-demo  ## the whole path on real satellite imagery, on a CPU, in minutes
	$(RUN)/mae demo

test: $(VENV)/.installed-dev  ## run all tests
	$(RUN)/python -m pytest

check: $(VENV)/.installed-dev  ## lint and types
	$(RUN)/ruff format --check .
	$(RUN)/ruff check .
	$(RUN)/mypy

bench: $(VENV)/.installed-dev  ## how fast this machine reads, decodes, augments and loads images
	$(RUN)/mae bench data

bench-demo: $(VENV)/.installed-demo  ## the demo over 3 seeds x 3 label subsets
	$(RUN)/python -m mae.commands.bench_demo --seeds 3 --label-seeds 3

soak: $(VENV)/.installed-dev  ## the long versions: 5,000 mutated shards, 100 kills, ten times the examples
	MAE_SOAK=10 MAE_SOAK_SEED=$${MAE_SOAK_SEED:-$$(date +%s)} $(RUN)/python -m pytest \
		tests/unit/datamodules/test_fuzz.py tests/unit/datamodules/test_resume_kill.py \
		tests/unit/datamodules/test_ranks.py tests/unit/datamodules/test_plan_properties.py

clean:  ## remove .venv and caches, keep results
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis
