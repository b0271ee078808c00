"""A new gradient compression takes two places: its registry entry and its class (docs/extending.md)."""

import shutil

import pytest
from toy_checkout import ToyCheckout
from verbs import SMALL

ENTRY = """        Compression(
            "sign",
            "the sign of each gradient times their mean size, as float16",
            "mxscale.distributed.sign:Sign",
            bytes_each=2,
        ),
"""

IMPLEMENTATION = """
from mxscale.distributed.compression import Float16


class Sign(Float16):
    def encode(self, total, array):
        array[:] = total.sign() * total.abs().mean()
"""


@pytest.mark.slow
def test_a_toy_compression_takes_two_places_trains_and_resumes(tmp_path, data_cache):
    registry = "config/compressions.py"
    checkout = ToyCheckout(tmp_path / "checkout", registry, ENTRY, "distributed/sign.py", IMPLEMENTATION)

    def train(*overrides):
        run = checkout.train(f"runs={tmp_path}/runs", f"data.cache={data_cache}", *overrides)
        return run, run.read("status.json")["params_sha256"]

    run, uninterrupted = train(
        *SMALL, "launch.ranks=2", "comm.compression=sign", "checkpoint.every_steps=2", "max_steps=4"
    )
    shutil.rmtree(run.checkpoint(4))  # as if it had been killed at step 3
    run.write("status.json", {**run.read("status.json"), "state": "killed"})
    assert train(f"resume={run}")[1] == uninterrupted
