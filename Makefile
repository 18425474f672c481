# Two commands are enough: `make train` learns to play, `make test` checks everything. `make help` lists the others.

PYTHON ?= python3.11
VENV ?= .venv
ENV ?= doom_basic
ARGS ?=
# Processes that run tests side by side. Most tests wait for other processes, and each of those has several itself.
JOBS ?= 2
# Slashes and colons of an environment's name cannot be in a folder's name.
EXPERIMENT ?= $(subst /,_,$(subst :,_,$(ENV)))
# Enough to solve doom_basic. Other environments train until Ctrl+C, which saves, unless STEPS or ARGS set a budget.
STEPS ?= $(if $(filter doom_basic,$(ENV)),600000)

run := $(VENV)/bin/python
no_python := "Python 3.11 with its venv module is needed; name another with make PYTHON=/path/to/python3.11"
# What Gymnasium and ViZDoom bring; every other environment needs the packages of its family as well.
core_envs := doom_% synthetic_% classic_% CartPole-% Acrobot-% Pendulum-% MountainCar%
needs := $(if $(filter $(core_envs),$(ENV)),requirements,requirements-envs)
# What is typed in ARGS comes last and wins.
train_options := --env=$(ENV) --experiment=$(EXPERIMENT) $(if $(STEPS),--train_for_env_steps=$(STEPS)) $(ARGS)

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help train test test-slow lint bench gpu-check chaos docs site clean

help:  ## List these commands
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-11s %s\n", $$1, $$2}'
	@echo
	@echo "  make train ENV=CartPole-v1 STEPS=500000          another environment and budget"
	@echo "  make train ARGS='--train_for_env_steps=2e6'      any option of docs/options.md; goes on where it stopped"

# The program itself says how to go on. A run that Ctrl+C or SIGTERM has ended has saved: that is no error.
train: $(VENV)/$(needs).installed  ## Learn ENV (doom_basic, from pixels), or go on where it stopped
	@trap : INT; $(run) train_appo.py $(train_options) || { code=$$?; test $$code -eq 130 || test $$code -eq 143 || exit $$code; }

# Hundreds of short runs import the same modules: a tenth of their time goes into compiling them where that is not kept.
test test-slow: export PYTHONDONTWRITEBYTECODE =

# Without --max-worker-restart=0 pytest-xdist hangs when a test kills the process that runs it. Tests that failed beside
# others run once more alone: many of them give processes a time to react in, which a busy machine may not have.
test: $(VENV)/requirements-dev.installed  ## Run the tests that take seconds
	$(run) -m pytest -m "not slow" -n $(JOBS) --dist=loadfile --max-worker-restart=0 $(ARGS) || { test $$? -eq 1 && \
	$(run) -m pytest -m "not slow" --last-failed --last-failed-no-failures=none $(ARGS); }

test-slow: $(VENV)/requirements-dev.installed  ## Run the tests that take minutes
	$(run) -m pytest -m slow $(ARGS)

lint: $(VENV)/requirements-dev.installed  ## Check style, format and types
	$(run) -m ruff check
	$(run) -m ruff format --check
	$(run) -m mypy

bench: $(VENV)/requirements-envs.installed  ## Has it become slower than benchmarks/speed/baseline.json says? Nothing else may run
	$(run) -m benchmarks.speed.regression $(ARGS)

gpu-check: $(VENV)/requirements-dev.installed  ## Test and measure everything on a GPU, in 9 minutes; ARGS=--device=cpu rehearses
	$(run) -m benchmarks.gpu_check $(ARGS)

chaos: $(VENV)/requirements.installed  ## Kill workers 1000 times, die at every failpoint, end at random moments; hours
	$(run) -m benchmarks.faults.chaos --kills=1000 $(ARGS)
	$(run) -m benchmarks.faults.chaos --kills=100 --signals=stop,freeze,term $(ARGS)
	$(run) -m benchmarks.faults.chaos --each_failpoint=20 $(ARGS)
	$(run) -m benchmarks.faults.learning --minutes=10
	$(run) -m benchmarks.faults.shutdown --moments=50

docs: $(VENV)/requirements.installed  ## Write docs/options.md anew from the declarations of the options
	$(run) -m appo.algorithms.config

site: $(VENV)/requirements-tools.installed  ## Write the documentation as a site, site/index.html
	$(VENV)/bin/zensical build --strict

clean:  ## Remove the virtual environment and every cache; keeps train_dir
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The file that is touched here says that a list of requirements is installed; a changed list is newer than it.
$(VENV)/%.installed: %.txt
	@$(run) -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv $(VENV) || { echo $(no_python) >&2; exit 1; }
	$(run) -m pip install --quiet --disable-pip-version-check --requirement $<
	@touch $@

$(VENV)/requirements-envs.installed: requirements.txt
$(VENV)/requirements-dev.installed: requirements.txt requirements-envs.txt requirements-tools.txt
