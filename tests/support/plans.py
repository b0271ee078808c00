"""Sizes and plans for run directories that tests write by hand."""

from mxscale.config.sizes import Sizes
from mxscale.perfmodel import scenarios
from mxscale.rundir.plan import Split


def make_sizes(ranks=1, **values) -> Sizes:
    """Sizes of a run with a shard per rank and a batch of 32 per device, unless `values` has others."""
    shards, batch = values.get("shards", ranks), values.get("per_device_batch", 32)
    images = dict(train_images=1000, steps_per_epoch=10, total_steps=100, dropped_per_epoch=0)
    plain = dict(shards=shards, per_device_batch=batch, global_batch=batch * shards, effective_lr=0.1, **images)
    return Sizes(ranks=ranks, **{**plain, **values})


def only_plan(grid: scenarios.Grid, task: scenarios.Task) -> dict:
    """Return the row of a grid with one plan."""
    plans, _ = scenarios.evaluate(grid, task)
    (row,) = scenarios.rows(plans, range(len(plans["hours"])))
    return row


def make_splits(**counts) -> dict:
    return {name: Split(count) for name, count in counts.items()}
