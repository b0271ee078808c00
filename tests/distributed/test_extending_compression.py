"""A new gradient compression takes two places: its registry entry and its class (docs/extending.md)."""

import shutil
from dataclasses import replace

import mxnet as mx
import numpy as np
import pytest
from refusals import contains, error_of
from toy_checkout import ToyCheckout
from verbs import SMALL

from mxscale.config import backends
from mxscale.config.backends import Compression
from mxscale.config.schema import Comm, from_dict
from mxscale.config.validation import validate
from mxscale.distributed.communicators import Local
from mxscale.distributed.compression import Float16, Wire
from mxscale.distributed.exchange import make_exchange

ENTRY = """        Compression(
            "sign",
            "the sign of each gradient times their mean size, as float16",
            "mxscale.distributed.sign:Sign",
            bytes_each=2,
            error_feedback=True,
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
    registry = "config/backends.py:COMPRESSIONS"
    checkout = ToyCheckout(tmp_path / "checkout", registry, ENTRY, "distributed/sign.py", IMPLEMENTATION)

    def train(*overrides):
        run = checkout.train(f"runs={tmp_path}/runs", f"data.cache={data_cache}", *overrides)
        return run, run.read("status.json")["params_sha256"]

    run, uninterrupted = train(
        *SMALL, "launch.ranks=2", "comm.compression=sign", "checkpoint.every_steps=2", "max_steps=4"
    )
    assert (run.checkpoint(2) / "residuals").exists()
    shutil.rmtree(run.checkpoint(4))  # as if it had been killed at step 3
    run.write("status.json", {**run.read("status.json"), "state": "killed"})
    assert train(f"resume={run}")[1] == uninterrupted


class Truncated(Wire):
    """Whole numbers, rounded towards zero."""

    def encode(self, total, array):
        array[:] = mx.nd.fix(total)


class TwoEqualRanks(Local):
    size = 2

    def all_reduce(self, arrays, name):
        for array in arrays:
            array *= 2

    def all_gather(self, arrays, name):
        return [array.copy() for array in arrays] * 2


@pytest.fixture
def exchange(monkeypatch):
    """exchange(class, like) -> an exchange of two equal ranks with error feedback."""

    def made(wire, like, **options):
        entry = Compression("test", "for a test", "unused:unused", bytes_each=1, error_feedback=True)
        monkeypatch.setitem(backends.COMPRESSIONS, "test", entry)
        monkeypatch.setattr("mxscale.distributed.exchange.resolve_name", lambda name: wire)
        return make_exchange(TwoEqualRanks(), [like], Comm(compression="test", **options), 8)

    return made


def sent(exchange, values, steps):
    """Return the sums of the ranks after each step with these gradients."""
    sums = []
    for _ in range(steps):
        for grad, value in zip(exchange.replicas[0], values):
            grad[:] = value
        if exchange():
            sums.append([grad.asnumpy().tolist() for grad in exchange.replicas[0]])
    return sums


def test_error_feedback_sends_what_was_rounded_off(exchange):
    sums = sent(exchange(Truncated, [mx.nd.zeros(2), mx.nd.zeros(1)]), [mx.nd.array([0.25, -0.5]), 1], 4)
    assert sums == [[[0, 0], [2]], [[0, -2], [2]], [[0, 0], [2]], [[2, -2], [2]]]


@pytest.mark.parametrize("double_buffering", [False, True])
@pytest.mark.parametrize("wire", [Truncated, Float16])
def test_residuals_resume_in_other_buckets(exchange, wire, double_buffering):
    random = np.random.RandomState(0)
    values = [mx.nd.array(random.normal(size=size)) for size in (3, 5)]
    like, options = [mx.nd.zeros(3), mx.nd.zeros(5)], {"double_buffering": double_buffering}
    uninterrupted = sent(exchange(wire, like, **options), values, 6)
    first = exchange(wire, like, **options)
    before = sent(first, values, 3)
    state, residuals = first.state(), first.residuals()
    assert set(residuals) == {"0.0", "0.1", "1.0", "1.1"} and any(array.asnumpy().any() for array in residuals.values())
    resumed = exchange(wire, like, bucket_mb=16 / 2**20, **options)
    resumed.restore(state)
    resumed.restore_residuals(residuals)
    assert len(resumed.residuals()) == 4
    assert before + sent(resumed, values, 3) == uninterrupted


@pytest.mark.parametrize(
    "values, words",
    [
        ({"precision": "amp"}, ["comm.compression=fp16 with precision=amp", "use precision=float32 or float16"]),
        ({"comm": {"backend": "parameter_server"}}, ["comm.compression=fp16 with comm=parameter_server", "residuals"]),
    ],
)
def test_error_feedback_is_refused_where_it_cannot_work(monkeypatch, values, words):
    entry = replace(backends.COMPRESSIONS["fp16"], error_feedback=True)
    monkeypatch.setitem(backends.COMPRESSIONS, "fp16", entry)
    values = {**values, "comm": {**values.get("comm", {}), "compression": "fp16"}}
    contains(error_of(lambda: validate(from_dict(values))), *words)


def test_another_number_of_replicas_shares_the_residuals(exchange):
    resumed = exchange(Truncated, [mx.nd.zeros(1)])
    resumed.restore_residuals({f"{replica}.0": mx.nd.array([replica]) for replica in range(4)})
    assert resumed.residuals()["0.0"].asnumpy().tolist() == [(0 + 1 + 2 + 3) / 2]
