"""Verdicts of `mxscale diagnose` on runs with a known bottleneck.

    python bench/diagnose.py [--quick] [--only input] [--seconds 5] [--repeats 3]

input      A reader in a copy of the package sleeps before each step for a known time, longer than a synthetic step.
           If compute is hidden behind the sleep, 1 - real/synthetic is 1 - step / sleep; if not, it is
           1 - step / (step + sleep). Work dispatched before continues meanwhile, so the result lies in between.
exchange   Two ranks on links of a known rate (bench/emulated_network.py) exchange after backward. A ring of two sends
           all bytes once each way, so an exchange takes at least bytes / rate.
compute    A larger network on generated images of the same size.

For each: the verdict, the share of its part (95 % bootstrap interval), and the expected share.
"""

import json
import os
import re
import shutil
import sys
import tempfile
from pathlib import Path

import emulated_network as network
import measure
from emulated_network import Network

from mxscale.perfmodel import layers

RATE = "100mbit"
SLEEPS = """

import time as _time

_step = TrainData.step


def _late(self, step):
    _time.sleep({seconds})
    yield from _step(self, step)


TrainData.step = _late
"""


def diagnose(options, *settings, where=measure.ROOT, env=os.environ) -> dict:
    """Diagnose the settings; return diagnosis.json."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as runs:
        own = [f"diagnose.seconds={options.seconds}", f"diagnose.repeats={options.repeats}", "diagnose.warmup_steps=5"]
        argv = [sys.executable, "-m", "mxscale", "diagnose", f"runs={runs}", "tracking=none", *own, *settings]
        done = measure.run(argv, cwd=where, env=env)
        path = Path(re.search(r"^run +(\S+)$", done.stdout, re.MULTILINE)[1])
        return json.loads((path / "diagnosis.json").read_text())


def slowed_input(options) -> dict:
    """Sleep for twice the time of a synthetic step, so that about half of a step is input."""
    settings = ["data=digits", "launch.ranks=1", "launch.threads=1", f"data.cache={options.cache}"]
    plain = diagnose(options, *settings)
    seconds = 2 * plain["steps_s"]["compute"]["value"]
    with tempfile.TemporaryDirectory() as copy:
        for part in ("mxscale", "conf"):
            shutil.copytree(measure.ROOT / part, f"{copy}/{part}", symlinks=True)
        with open(f"{copy}/mxscale/data/reader/turbojpeg.py", "a") as reader:
            reader.write(SLEEPS.format(seconds=seconds))
        found = diagnose(options, *settings, where=copy)
    step = found["steps_s"]["compute"]["value"]
    expected = 1 - step / seconds, 1 - step / (step + seconds)
    return {"before": plain["verdict"], "sleep_s": seconds, **result(found, "input", expected)}


def limited_link(options) -> dict:
    reason = network.possible()
    if reason:
        return {"not measured": reason}
    with Network(2, RATE) as nodes:
        settings = ["data=synthetic", "data.image_size=64", "data.num_images=100000", "model.name=mobilenet0.25"]
        where = [f"launch.hosts={nodes.hosts}", "launch.threads=1", "comm.overlap=false"]
        found = diagnose(options, *settings, *where, env=nodes.env())
    gradients = layers.network("mobilenet0.25").gradients
    wire = 8 * 4 * gradients / network.bits_per_second(RATE)
    step = found["steps_s"]
    rest = step["side_by_side"]["value"]
    return {"bytes_over_rate_s": wire, **result(found, "exchange", (wire / (rest + wire),))}


def heavier_net(options) -> dict:
    settings = ["data=digits", "data.image_size=64", "batch.per_device=16", "model=resnet18_v1b", "launch.ranks=1"]
    return result(diagnose(options, *settings, f"data.cache={options.cache}"), "compute", ())


def result(found: dict, part: str, expected: tuple) -> dict:
    """Return the figures of a case; `expected` is the share or its range, () if only the verdict is known."""
    return {
        "verdict": found["verdict"],
        "kind": found["kind"],
        "right": found["kind"] == part,
        "share": found["shares"][part],
        "expected": expected,
        "repeats": found["repeats"],
        "steps_s": found["steps_s"],
    }


CASES = {"input": slowed_input, "exchange": limited_link, "compute": heavier_net}


def main() -> None:
    options = measure.arguments(
        __doc__.splitlines()[0],
        only=("", f"one of {', '.join(CASES)}; empty: all"),
        seconds=(5.0, "duration of each probe"),
        repeats=(3, "repetitions of all probes"),
    )
    if options.quick:
        options.seconds, options.repeats = 1.0, 2
    figures = {}
    with tempfile.TemporaryDirectory() as options.cache:
        for name in [options.only] if options.only else ["input"] if options.quick else CASES:
            figures[name] = CASES[name](options)
            show(name, figures[name])
    measure.finish(figures)


def show(name: str, one: dict) -> None:
    if "not measured" in one:
        print(f"{name}: not measured: {one['not measured']}")
        return
    share = one["share"]
    should = " to ".join(f"{100 * share:.0f}" for share in one["expected"]) or "above 75"
    print(f"{name}: {one['verdict']}")
    print(
        f"  its share {100 * share['value']:.1f} % ({100 * share['low']:.1f} to {100 * share['high']:.1f}, "
        f"{one['repeats']} repetitions); expected {should} %",
        flush=True,
    )


if __name__ == "__main__":
    main()
