"""A new back end takes two files: its registry entry and its implementation (docs/extending.md)."""

import pytest
from toy_checkout import ToyCheckout
from verbs import SMALL

ENTRY = """        Backend(
            name="gather",
            help="each rank gathers all gradients and adds them up itself",
            implementation="mxscale.distributed.gather:Gather",
            uses_horovod=True,
        ),
"""

IMPLEMENTATION = """
from mxscale.distributed.communicators import Horovod


class Gather(Horovod):
    def all_reduce(self, arrays, name):
        first, *others = self.all_gather(arrays, name)
        arrays[0][:] = sum(others, first)
"""


@pytest.mark.slow
def test_a_toy_back_end_takes_two_files_and_trains(tmp_path, data_cache, shared_cli):
    registry = "config/backends.py:BACKENDS"
    checkout = ToyCheckout(tmp_path / "checkout", registry, ENTRY, "distributed/gather.py", IMPLEMENTATION)
    case = [*SMALL, "launch.ranks=2", "max_steps=3"]
    run = checkout.train(f"runs={tmp_path}/runs", f"data.cache={data_cache}", *case, "comm.backend=gather")
    assert run.read("status.json")["params_sha256"] == shared_cli("train", *case).sha  # two addends: the same sum
