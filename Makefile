# `make help` lists what there is.  Every target does its own set-up first.
PY := .venv/bin/python

.PHONY: help setup train finetune doctor test test-quick test-docker test-reference lint bench ui clean
.DEFAULT_GOAL := help

help:  ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-14s %s\n", $$1, $$2}' Makefile

setup: .venv/run.stamp  ## .venv with locked packages and Horovod (a few minutes, once)

train: .venv/run.stamp  ## the main job: learn the handwritten digits 0-4
	@$(PY) train.py

finetune: .venv/run.stamp  ## then the digits 5-9, from a few labels each
	@$(PY) finetune.py

doctor: .venv/run.stamp  ## what stands in the way of a run here
	@.venv/bin/mxscale doctor

test: .venv/dev.stamp  ## all tests but those of images, on all cores, with coverage: the quick ones first
	@$(PY) -m pytest -n auto -m "not slow and not docker" --cov --cov-report=
	@$(PY) -m pytest -n auto --dist loadfile -m "slow and not docker" --cov --cov-append --cov-report=term:skip-covered

test-docker: .venv/dev.stamp  ## images, Compose, a cluster: needs a Docker engine (half an hour)
	@$(PY) -m pytest -n 2 --dist loadfile -m docker

test-quick: .venv/dev.stamp  ## the tests that take seconds
	@$(PY) -m pytest -n auto -m "not slow and not docker"

test-reference: .venv/dev.stamp .venv-reference/stamp  ## converted networks against PyTorch's own (fetches its build for CPUs)
	@PYTHONPATH=$$($(PY) -c 'import sysconfig; print(sysconfig.get_path("purelib"))') \
	  .venv-reference/bin/python -m pytest tests/test_reference.py

lint: .venv/dev.stamp  ## ruff, and shellcheck where it is: errors and layout
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .
	@if command -v shellcheck >/dev/null; then shellcheck $$(grep -lE '^#!.*(ba)?sh$$' docker/* requirements/setup .ci/run); fi

bench: .venv/run.stamp  ## every bench; QUICK=1 takes a minute each at most
	@set -e; for bench in $(filter-out $(addprefix bench/,loop.py measure.py network.py ranks.py stock.py watched.py),$(wildcard bench/*.py)); do echo "== $$bench"; $(PY) $$bench $(if $(QUICK),--quick); done

ui: .venv/run.stamp  ## MLflow on 127.0.0.1:5000 with what was recorded
	@mkdir -p runs
	@.venv/bin/mlflow ui --host 127.0.0.1 --port 5000 --backend-store-uri "$${MLFLOW_TRACKING_URI:-sqlite:///runs/mlflow.db}"

clean:  ## remove .venv; runs/ stays
	rm -rf .venv .venv-reference

.venv/run.stamp: requirements/run.lock requirements/horovod.lock requirements/setup
	@requirements/setup run

.venv/dev.stamp: .venv/run.stamp requirements/dev.lock
	@requirements/setup dev

.venv-reference/stamp: .venv/run.stamp requirements/reference.lock
	@requirements/setup reference
