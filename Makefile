# `make help` lists the targets. Each target installs what it requires first.
PY := .venv/bin/python

.PHONY: help setup setup-optuna setup-skypilot train finetune doctor test test-slow test-docker test-all test-reference sbom fuzz lint bench figures ui clean
.DEFAULT_GOAL := help

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-14s %s\n", $$1, $$2}' Makefile

setup: .venv/run.stamp  ## create .venv with locked packages, Horovod and the command mxscale (a few minutes, once)

setup-optuna: .venv/optuna.stamp  ## add the Optuna sweeper to .venv

setup-skypilot: .venv-skypilot/stamp  ## create .venv-skypilot, against which the tasks of plan.task are tested

train: .venv/run.stamp  ## train a network on the handwritten digits 0-4
	@$(PY) train.py

finetune: .venv/run.stamp  ## fine-tune that network on the digits 5-9 with a few labels per class
	@$(PY) finetune.py

doctor: .venv/run.stamp  ## check this machine for what would prevent a run
	@.venv/bin/mxscale doctor

test: .venv/dev.stamp  ## run the quick tests on all cores (minutes); COVERAGE=1 measures coverage
	@$(PY) -m pytest -n auto --dist loadfile --no-loadscope-reorder -m "not slow and not docker" $(if $(COVERAGE),--cov)

test-slow: .venv/dev.stamp  ## run the tests that train and kill real runs
	@$(PY) -m pytest -n auto --dist loadfile -m "slow and not docker" --durations=25 $(if $(COVERAGE),--cov --cov-append)

test-docker: .venv/dev.stamp  ## run the tests of images, Compose and a cluster; requires a Docker engine
	@$(PY) -m pytest -n 2 --dist loadfile --no-loadscope-reorder -m docker --durations=10 tests/images

test-all: test test-slow test-docker  ## run all tests

test-reference: .venv/dev.stamp .venv-reference/stamp  ## compare converted networks with PyTorch's (downloads its CPU build)
	@PYTHONPATH=$$($(PY) -c 'import sysconfig; print(sysconfig.get_path("purelib"))') \
	  .venv-reference/bin/python -m pytest tests/models/test_reference.py tests/models/test_reference_lite.py

sbom: .venv/sbom.stamp  ## write the packages of images to sbom/TARGET.spdx.json: make sbom TARGETS="cpu mlflow"
	@set -e; for target in $(or $(TARGETS),cpu mlflow); do \
	  docker image inspect mxscale:$$target >/dev/null || { \
	    echo "make sbom: no image mxscale:$$target: docker build --target $$target -t mxscale:$$target ." >&2; exit 2; }; \
	  mkdir -p sbom; SYFT_CHECK_FOR_APP_UPDATE=false .venv/bin/syft scan -q docker:mxscale:$$target -o spdx-json=sbom/$$target.spdx.json; \
	  echo "sbom/$$target.spdx.json: $$(grep -o '"SPDXID":"SPDXRef-Package-' sbom/$$target.spdx.json | wc -l) packages of mxscale:$$target"; \
	done

fuzz: .venv/dev.stamp  ## N generated inputs of each kind, and runs killed at random steps: make fuzz N=300 SEED=1
	@$(PY) -m tests.fuzz --count $(or $(N),300) --seed $(or $(SEED),1)
	@FAULT_SEED=$(or $(SEED),$$(shuf -i 1-999999 -n 1)) $(PY) -m pytest -q -k "killed or stopped_rank" \
	  tests/train/test_resume.py tests/launcher/test_faults.py

lint: .venv/dev.stamp  ## check code, architecture and spelling: ruff, tools/structure.py, codespell, and shellcheck if installed
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .
	@$(PY) tools/structure.py
	@.venv/bin/codespell *.* Makefile Dockerfile .ci bench conf docker docs mxscale requirements tests tools
	@if command -v shellcheck >/dev/null; then shellcheck $$(grep -lE '^#!.*(ba)?sh$$' docker/* mxscale/planner/skypilot.sh requirements/setup requirements/install-horovod .ci/run); fi

bench: .venv/run.stamp  ## run every benchmark; with QUICK=1 each takes at most a minute
	@set -e; for bench in $(filter-out $(addprefix bench/,finetune.py im2rec_page.py loop.py measure.py mnist.py precision.py ranks.py stock.py torch_step.py watched.py),$(wildcard bench/*.py)); do echo "== $$bench"; $(PY) $$bench $(if $(QUICK),--quick); done

# Measurements are read, never repeated. REPLAY: `output` of `mxscale replay aws-scaling scale=small` with slow_hosts
# (docs/replays.md); REPORT: `report.output` of the command in docs/report.md; UI: address of a run's page of `make ui`.
# cifar10.png is the run's own learning-curves.png, finetune.png that of `bench/finetune.py --photographs DIR --figure
# FILE`, which keeps its finished runs
COMMA := ,
SCREENSHOT := chromium --headless --no-sandbox --hide-scrollbars --screenshot=
PLAN := machine.instance=p3.16xlarge 'plan.nodes=[1,2,4,8]' 'plan.comm=[horovod,parameter_server]' \
  'plan.servers=[0,1,1x]' plan.batch=128 plan.epochs=90 plan.deadline_hours=3
figures: .venv/dev.stamp  ## draw docs/figures; recorded ones only with REPORT=DIR, REPLAY=DIR, UI=ADDRESS
	@$(PY) tools/plan_figure.py docs/figures/plan.png $(PLAN)
	@$(PY) tools/plan_figure.py docs/figures/plan-target.png machine.instance=p4d.24xlarge 'plan.nodes=[1,2,4,8,16,32]' \
	  precision=amp 'plan.batch=[128,256]' plan.target=75.9
	@$(PY) tools/scaling_model.py docs/figures/scaling-model.png >/dev/null
	@$(PY) bench/large_batch.py --figure docs/figures/large-batch.png
	@$(if $(REPLAY),cp $(REPLAY)/aws-scaling-1.png docs/figures/replay-aws-scaling.png)
	@$(if $(REPORT),$(SCREENSHOT)docs/figures/report.png --window-size=1200$(COMMA)1500 file://$(abspath $(REPORT))/report.html)
	@$(if $(UI),$(PY) tools/mlflow_page.py '$(UI)' docs/figures/mlflow.png)

ui: .venv/run.stamp  ## start MLflow's user interface on 127.0.0.1:5000
	@mkdir -p runs
	@.venv/bin/mlflow ui --host 127.0.0.1 --port 5000 --backend-store-uri "$${MLFLOW_TRACKING_URI:-sqlite:///runs/mlflow.db}"

clean:  ## remove .venv; runs/ stays
	rm -rf .venv .venv-reference .venv-skypilot

.venv/run.stamp: requirements/run.lock requirements/horovod.lock requirements/setup requirements/install-horovod
	@requirements/setup run

.venv/dev.stamp: .venv/run.stamp requirements/dev.lock
	@requirements/setup dev

.venv/optuna.stamp: .venv/run.stamp requirements/optuna.lock
	@requirements/setup optuna

.venv/sbom.stamp: .venv/run.stamp requirements/sbom.lock
	@requirements/setup sbom

.venv-reference/stamp .venv-skypilot/stamp: .venv-%/stamp: .venv/run.stamp requirements/%.lock
	@requirements/setup $*
