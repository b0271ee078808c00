"""Times of probes and prepared runs for the tests of diagnoses."""

from plans import make_sizes

from mxscale.config.schema import from_dict
from mxscale.config.validation import validate
from mxscale.diagnose import probes
from mxscale.diagnose.advice import Facts
from mxscale.rundir.plan import Plan

BASE = from_dict({"data": {"kind": "imagefolder", "root": "/x", "image_size": 100}})
TWO = Facts(ranks=2, threads=1, cores=2, ranks_here=2)


def times(jitter=0.01, repeats=3, **seconds):
    """Return three intervals in each of three repetitions around each probe's seconds."""
    around = [1 - jitter, 1, 1 + jitter]
    return {
        name: [[step * (1 + jitter * (turn - 1) / 3) * factor for factor in around] for turn in range(repeats)]
        for name, step in seconds.items()
    }


ALL = dict(compute=0.10, side_by_side=0.11, exchange=0.15, all=0.20)


def prepared(ranks=2, device="cpu", hosts=(), **values):
    config = validate(from_dict({"launch": {"ranks": ranks}, "data": {"image_size": 48, "threads": 2}, **values}))
    shards = config.data.shards or ranks
    images = 32 * shards * config.batch.accumulation
    sizes = make_sizes(ranks, shards=shards, global_batch=images, train_images=500, steps_per_epoch=7, total_steps=70)
    plan = Plan(sizes=sizes, device=device, hosts=tuple(hosts), threads=3, classes=5)
    return probes.Run(probes.untimed(config), plan)
