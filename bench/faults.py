"""Random faults: whether a run loses data or hangs.

    python bench/faults.py [--count 40] [--seed 1] [--only TEXT] [--quick]

Each run is hit by one fault at a random step and completed by `launch.restarts` or `resume=`, chosen at random. A run
survives if the attempt ends within 30 s of the fault and names what failed, if no process and no damaged checkpoint is
left, and if the run ends with the bytes of an undisturbed one. The faults are defined in
tests/support/faults.py; a full disk and a cut link need root.
"""

import contextlib
import random
import shutil
import sys
import tempfile
from pathlib import Path

import measure

sys.path.insert(0, str(measure.ROOT / "tests" / "support"))

import faults
from machine import mounted
from verbs import Cli

from mxscale.distributed.communicators import horovod_build

SETTINGS = ("epochs=3", "checkpoint.every_steps=4", "batch.per_device=8", "data.shards=2", "launch.threads=1")
STEPS = 21  # of such a run


class Bench:
    """The runs in one folder and the digest that each must end with."""

    def __init__(self, folder: Path):
        self.folder, self.digests = folder, {}
        self.other = "mpi" if horovod_build()["mpi"] else "gloo"

    def expected(self, settings: tuple) -> str:
        """Return the digest of the same run without a fault."""
        if settings not in self.digests:
            self.digests[settings] = Cli(self.folder / "unbroken", self.folder / "data")("train", *settings).sha
        return self.digests[settings]

    def strike(self, number: int, name: str, dice: random.Random) -> dict:
        """Inject one fault into one run; return the result."""
        fault = faults.FAULTS[name]
        transport = () if fault.settings else (f"comm.transport={dice.choice(['gloo', 'gloo', self.other])}",)
        settings = (*SETTINGS, "launch.ranks=2", *(transport if name != "a link cut" else ()))
        expected = self.expected((*settings, *fault.settings))
        step, by_itself = dice.randrange(fault.from_step, STEPS - 2), dice.random() < 0.5
        how = "restarts" if by_itself and fault.retryable else "resume"
        label = " ".join([f"{number:3} {name} at step {step},", *transport, how])
        folder = self.folder / f"struck{number}"
        try:
            with contextlib.ExitStack() as around:
                network = None
                if name == "the disk full":
                    around.enter_context(mounted(folder, "size=12m"))
                if name == "a link cut":
                    from emulated_network import Network

                    network = around.enter_context(Network(2))
                    settings = (*settings, f"launch.hosts={network.hosts}")
                cli = Cli(folder, self.folder / "data")
                seen = faults.survive(cli, faults.Strike(name, step, by_itself), dice, settings, network)
                assert seen["sha"] == expected, "the weights differ"
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            print(f"{label}: NOT SURVIVED, {reason}; see {folder}", flush=True)
            return {"fault": name, "survived": False, "reason": reason[:500]}
        shutil.rmtree(folder, ignore_errors=True)
        print(f"{label}: over after {seen['seconds']:.1f} s: {seen['error']}", flush=True)
        return {"fault": name, "survived": True, "seconds": seen["seconds"]}


def main() -> None:
    options = measure.arguments(
        __doc__.splitlines()[0],
        count=(40, "number of faults"),
        seed=(random.SystemRandom().randrange(10**6), "seed of all random choices"),
        only=("", "faults whose names contain this text"),
    )
    names = [name for name in faults.FAULTS if faults.possible(name) and options.only in name]
    dice, folder = random.Random(options.seed), Path(tempfile.mkdtemp(prefix="mxscale-faults-"))
    bench, results = Bench(folder), []
    print(f"seed {options.seed}; runs in {folder}", flush=True)
    for number in range(3 if options.quick else options.count):
        # Each kind once per round, in random order
        if number % len(names) == 0:
            dice.shuffle(names)
        results.append(bench.strike(number, names[number % len(names)], dice))
    print(f"\n{'fault':30} struck  survived  seconds to the end of the attempt")
    for name in sorted(names):
        mine = [result for result in results if result["fault"] == name]
        seconds = [result["seconds"] for result in mine if result["survived"]]
        shown = measure.show(measure.spread(seconds), "{:.1f}") if seconds else "-"
        print(f"{name:30} {len(mine):6}  {len(seconds):8}  {shown}")
    survived = sum(result["survived"] for result in results)
    print(f"{survived} of {len(results)} survived")
    if survived == len(results):
        shutil.rmtree(folder)
    measure.finish({"seed": options.seed, "struck": len(results), "survived": survived, "results": results})


if __name__ == "__main__":
    main()
