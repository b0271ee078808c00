"""data.decoder=pillow: images decoded ahead give the batches that MXNet's own reader gives."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import mxnet as mx
import numpy as np
import pytest
from records import noise, numbered
from test_kept import jpegs
from test_loader import AUGMENTED, RAW, micros, same, train_data

from mxscale.data.loader import evaluation_batches

CPU = mx.cpu()


def ahead(data, threads=2):
    return replace(data, decoder="pillow", threads=threads)


@pytest.mark.parametrize("data", [RAW, AUGMENTED], ids=["plain", "augmented"])
@pytest.mark.parametrize("of, accumulation, batch", [(1, 1, 5), (4, 1, 3), (2, 2, 7), (1, 1, 50), (8, 1, 1)])
def test_batches_are_those_of_mxnets_reader_to_the_last_bit(data, of, accumulation, batch, tmp_path):
    records = jpegs(tmp_path)
    settings = {"of": of, "accumulation": accumulation}
    theirs = micros(train_data(records, data, batch, **settings), range(9))  # several epochs, with a wrapped batch
    assert same(theirs, micros(train_data(records, ahead(data), batch, **settings), range(9)))


def test_the_number_of_threads_changes_nothing(tmp_path):
    records = jpegs(tmp_path)
    found = [micros(train_data(records, ahead(AUGMENTED, threads), 5), range(12)) for threads in (1, 5)]
    assert same(*found)


def test_a_resume_at_any_step_goes_on_with_the_same_batches(tmp_path):
    records = jpegs(tmp_path)
    unbroken = micros(train_data(records, AUGMENTED, 4, of=2), range(14))
    for start in (1, 5, 6, 13):
        resumed = micros(train_data(records, ahead(AUGMENTED), 4, of=2), range(start, 14))
        assert same(resumed, [m for m in unbroken if m[0] >= start]), start


def test_short_shards_wrap_alike(tmp_path):
    records = numbered(tmp_path, 30)
    theirs = micros(train_data(records, batch=1, of=4), range(14))
    assert same(theirs, micros(train_data(records, ahead(RAW), batch=1, of=4), range(14)))


@pytest.mark.parametrize("count", [1, 7, 8, 50])
def test_evaluation_counts_the_same_images_the_same_way(count, tmp_path):
    records = jpegs(tmp_path, count)
    data = replace(RAW, eval_resize=12)
    for ranks in (1, 3):
        for rank in range(ranks):
            both = [list(evaluation_batches(records, one, 7, rank, ranks, CPU)) for one in (data, ahead(data))]
            for (images, labels, counted), (ours, our_labels, our_counted) in zip(*both, strict=True):
                assert counted == our_counted and np.array_equal(labels.asnumpy(), our_labels.asnumpy())
                assert np.array_equal(images.asnumpy(), ours.asnumpy())


GROWTH = """
import gc, os, sys
import mxnet as mx
from mxscale.config import Augment, Data
from mxscale.data.loader import Records, TrainData, evaluation_batches
records = Records(sys.argv[1], sys.argv[2], int(sys.argv[3]))
data = Data(image_size=112, augment=Augment(), decoder="pillow")
source = TrainData(records, data, 16, [0, 1], 2, 1, 1, 1, mx.cpu())
def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096 / 2**20
def held():
    return resident(), len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))
for epoch in range(60):
    for micro in source.step(epoch):
        micro.images.wait_to_read()
    for images, labels, count in evaluation_batches(records, data, 16, 0, 1, mx.cpu()):
        images.wait_to_read()
    if epoch == 9:
        before = held()
print(*(after - first for after, first in zip(held(), before)))
"""


@pytest.mark.slow
def test_neither_memory_nor_files_nor_threads_grow_over_50_epochs(tmp_path):
    records = noise(tmp_path, 40)
    done = subprocess.run(
        [sys.executable, "-c", GROWTH, records.rec, records.idx, "40"],
        cwd=Path(__file__).resolve().parents[1], capture_output=True, text=True, check=True,
    )  # fmt: skip
    megabytes, files, threads = map(float, done.stdout.split())
    # Six readers an epoch: one that left a batch behind would make 700 MB.  The allocator's own ups and downs are 100.
    assert megabytes < 250 and files < 10 and threads < 10
