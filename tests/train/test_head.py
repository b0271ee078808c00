"""Frozen layers of a fine-tuning, and the progress that its parent shows."""

import json

import in_process
import mxnet as mx
import numpy as np
import pytest
from composed import composed

from mxscale.cli import settings
from mxscale.config.schema import from_dict
from mxscale.config.sizes import Sizes
from mxscale.launcher import progress, setup
from mxscale.models import weights, zoo
from mxscale.rundir import directory
from mxscale.rundir.plan import Plan
from mxscale.train import prepare


def trained(tmp_path, data_cache, *overrides, entry="finetune"):
    """Train two steps in this process; return the run directory."""
    words = ["data=digits_few", "model=small", "batch.per_device=8", "launch.ranks=1", "max_steps=2", "log_every=1",
             f"runs={tmp_path}/runs", f"data.cache={data_cache}", "data.train_per_class=4"]  # fmt: skip
    config = settings.resolve(composed(entry, *words, *overrides))
    run = directory.create(config)
    run.write_plan(Plan(pretrained=setup.pretrained_file(config)))
    prepare.prepare(run, config)
    assert in_process.trained(run)["state"] == "done"
    return run


@pytest.fixture
def loud(tmp_path):
    """Return an override for weights whose features are 1,000 times too large."""
    net = zoo.build("small", 5)
    zoo.initialise(net, 1, mx.cpu(), False)
    zoo.finish(net, (1, 3, 32, 32), mx.cpu())
    arrays = weights.arrays(net)
    arrays["features.5.1.body.4.gamma"] = arrays["features.5.1.body.4.gamma"] * 1000
    weights.save(tmp_path / "loud.params", arrays)
    return f"model.pretrained={tmp_path}/loud.params"


def test_a_line_without_metrics_begins_an_attempt(tmp_path):
    """A resume that first repeats a validation writes one."""
    run = directory.create(from_dict({"runs": str(tmp_path)}))
    watched = progress.Progress(run, Plan(sizes=Sizes(2, 2, 4, 8, 0.1, 160, 20, 40, 0)), lambda line: {})
    assert not watched.update()
    run.metrics_file.write_text(json.dumps({"attempt": 1, "step": 10, "time_ms": 1, "metrics": {}}) + "\n")
    assert watched.update()


def test_a_long_phase_is_printed_every_30_seconds(tmp_path, monkeypatch, capsys):
    run = directory.create(from_dict({"runs": str(tmp_path)}))
    plan = Plan(sizes=Sizes(2, 2, 4, 8, 0.1, 160, 20, 40, 0))
    watched = progress.Progress(run, plan, lambda line: {})
    line = {"attempt": 1, "step": 10, "time_ms": 1, "metrics": {"train/loss": 1.5}}
    run.metrics_file.write_text(json.dumps(line) + "\n")
    run.rank_alive(0).parent.mkdir(exist_ok=True)
    run.rank_alive(0).write_text(json.dumps({"phase": "validation"}) + "\n")
    clock = [1000.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: clock[0])
    watched.printed = 990.0
    for clock[0] in (1000.0, 1020.0, 1030.0, 1051.0):
        watched.update()
    assert capsys.readouterr().out.splitlines() == [
        "epoch 0.5  step 10/40  no new line; rank 0: validation",
        "epoch 0.5  step 10/40  no new line; rank 0: validation",
    ]


@pytest.mark.slow
def test_frozen_parameters_do_not_change(tmp_path, data_cache, loud):
    run = trained(tmp_path, data_cache, loud, "model.freeze=stage2", "optimizer.weight_decay=0.1")
    before = {n: a.asnumpy() for n, a in weights.load(tmp_path / "loud.params").items()}
    after = {n: a.asnumpy() for n, a in weights.load(run.checkpoints / "000000002" / "params").items()}
    same = {n for n in before if before[n].tobytes() == after[n].tobytes()}
    assert {n.split(".")[1] for n in same} >= {"0", "1", "3", "4"}
    assert not [n for n in before if n.split(".")[1] in ("0", "1", "3", "4") and n not in same]
    assert not [n for n in same if n.startswith("output.") or (n.endswith("running_mean") and n[9] == "5")]
    assert np.isfinite([line["metrics"]["train/loss"] for line in run.lines() if "train/loss" in line["metrics"]]).all()
