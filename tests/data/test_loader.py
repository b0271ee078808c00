"""Batches from record files: images, order and pixels."""

import subprocess
import sys
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from batches import AUGMENTED, CPU, RAW, evaluation_data, labels_of, micros, same, train_data
from records import flat, make_records, noise, numbered, ramp
from repository import ROOT

from mxscale.config.readers import READERS
from mxscale.config.training_settings import Augment
from mxscale.data.reader.batches import Reading, SyntheticData, seed_of
from mxscale.data.reader.record_iter import open_reader, part_sizes


@pytest.fixture(params=READERS)
def raw(request):
    """Settings that leave the pixels as they are, with each reader."""
    return replace(RAW, reader=request.param)


RECORD_ITER = replace(RAW, reader="record_iter")


# ---------------------------------------------------------------- parts


@pytest.mark.parametrize("count", [1, 2, 3, 5, 7, 8, 9, 13, 16, 20, 31])
def test_part_sizes_match_the_reader(count, tmp_path):
    records = numbered(tmp_path, count)
    for parts in range(1, 9):
        first = 0
        for index, size in enumerate(part_sizes(count, parts)):
            if size:  # an empty part can't be opened
                reader = open_reader(records, RAW, 1, (index, parts), 1)
                read = [batch.label[0].asscalar() for batch in reader]
                assert read == list(range(first, first + size)), (parts, index)
            first += size
        assert first == count


def test_seeds_differ_and_have_31_bits():
    seeds = {seed_of(a, b, c) for a in range(10) for b in range(10) for c in range(10)}
    assert len(seeds) == 1000
    assert max(seeds) < 2**31 and max(seeds) > 2**30
    assert seed_of(1, 23) != seed_of(12, 3)


# ---------------------------------------------------------------- training order


def test_the_order_depends_on_seed_and_epoch(raw, tmp_path):
    records = numbered(tmp_path, 32)

    def order(epoch, seed=1):
        return labels_of(micros(train_data(records, raw, seed=seed), range(8 * epoch, 8 * epoch + 8)))

    orders = {name: order(*name) for name in [(0, 1), (1, 1), (2, 1), (0, 2), (1, 2)]}
    assert all(sorted(found) == list(range(32)) for found in orders.values())
    assert len({tuple(found) for found in orders.values()}) == 5
    assert order(1, 1) == orders[1, 1]


def test_each_shard_has_its_own_part_and_order(tmp_path):
    found = micros(train_data(numbered(tmp_path, 32), RECORD_ITER, of=2), range(4))
    orders = [[x for _, shard, labels, _ in found if shard == wanted for x in labels] for wanted in (0, 1)]
    assert [sorted(order) for order in orders] == [list(range(16)), list(range(16, 32))]
    assert orders[1] != [x + 16 for x in orders[0]]


def test_shuffling_mixes_the_whole_set(raw, tmp_path):
    first = labels_of(micros(train_data(numbered(tmp_path, 600), raw, batch=60), [0]))
    assert min(first) < 100 and max(first) > 500
    assert 200 < np.mean(first) < 400


def test_labels_belong_to_their_images(raw, tmp_path):
    for _, _, labels, pixels in micros(train_data(numbered(tmp_path, 300), raw, batch=50), range(6)):
        assert (pixels[:, 0, 0, 0] + 256.0 * pixels[:, 1, 0, 0]).tolist() == labels


def test_an_epoch_has_every_image_once(raw, tmp_path):
    records = numbered(tmp_path, 64)
    for of, accumulation in [(1, 1), (4, 1), (2, 2)]:
        source = train_data(records, raw, of=of, accumulation=accumulation)
        for epoch in range(3):
            steps = range(epoch * source.reading.steps_per_epoch, (epoch + 1) * source.reading.steps_per_epoch)
            assert sorted(labels_of(micros(source, steps))) == list(range(64))


def test_dropped_images_differ_between_epochs(raw, tmp_path):
    source = train_data(numbered(tmp_path, 23), raw, batch=4)  # 5 steps of 4
    epochs = [labels_of(micros(source, range(5 * epoch, 5 * epoch + 5))) for epoch in range(3)]
    assert all(len(set(found)) == 20 for found in epochs)
    assert len({frozenset(found) for found in epochs}) > 1


def test_only_short_shards_repeat_images(tmp_path):
    # 30 images in 4 shards are 8, 8, 8 and 6; 3 steps of 2 images each need 6; 7 steps of 1, 7.
    found = Counter(labels_of(micros(train_data(numbered(tmp_path, 30), RECORD_ITER, batch=1, of=4), range(7))))
    assert sum(found.values()) == 28
    repeated = {label for label, times in found.items() if times > 1}
    assert len(repeated) == 1 and repeated < set(range(24, 30))
    found = Counter(labels_of(micros(train_data(numbered(tmp_path, 30), RECORD_ITER, batch=2, of=4), range(3))))
    assert set(found.values()) == {1}


@pytest.mark.parametrize("count, of, batch", [(10, 4, 2), (17, 8, 2), (9, 8, 1), (5, 4, 1), (29, 4, 7), (3, 3, 1)])
def test_short_and_empty_parts_still_fill_their_batches(count, of, batch, raw, tmp_path):
    source = train_data(numbered(tmp_path, count), raw, batch=batch, of=of)
    found = micros(source, range(3 * source.reading.steps_per_epoch))
    assert {shard for _, shard, _, _ in found} == set(range(of))
    for _, _, labels, pixels in found:
        assert len(labels) == batch
        assert (pixels[:, 0, 0, 0]).tolist() == labels  # no stale image of another batch
        assert set(labels) <= set(range(count))


# ---------------------------------------------------------------- ranks, shards, resume


@pytest.mark.parametrize("accumulation", [1, 2])
def test_batches_do_not_depend_on_the_number_of_ranks(accumulation, raw, tmp_path):
    records = noise(tmp_path, 50)

    def by_shard(ranks):
        shards = {"of": 4, "accumulation": accumulation}
        sources = [
            train_data(records, replace(AUGMENTED, reader=raw.reader), 3, rank, ranks, **shards)
            for rank in range(ranks)
        ]
        found = [micro for source in sources for micro in micros(source, range(6))]
        return sorted(found, key=lambda m: (m[0], m[1]))

    alone = by_shard(1)
    assert len(alone) == 6 * 4 * accumulation
    assert same(alone, by_shard(2))
    assert same(alone, by_shard(4))


def test_one_rank_reads_each_shard_once_per_accumulation(raw, tmp_path):
    source = train_data(numbered(tmp_path, 64), raw, of=4, rank=1, ranks=2, accumulation=2)
    assert [micro.shard for micro in source.step(0)] == [1, 1, 3, 3]


@pytest.mark.parametrize("of, accumulation", [(1, 1), (2, 2)])
def test_a_start_at_any_step_continues_bit_identically(of, accumulation, raw, tmp_path):
    records = noise(tmp_path, 50)
    settings = {"data": replace(AUGMENTED, reader=raw.reader), "of": of, "accumulation": accumulation}
    last = 2 * train_data(records, **settings).reading.steps_per_epoch + 2
    unbroken = micros(train_data(records, **settings), range(last))
    for start in range(last):
        resumed = micros(train_data(records, **settings), range(start, last))
        assert same(resumed, [m for m in unbroken if m[0] >= start]), start


def test_a_resume_restores_the_position_in_a_wrapped_shard(tmp_path):
    records = numbered(tmp_path, 30)
    unbroken = micros(train_data(records, RECORD_ITER, batch=1, of=4), range(14))
    assert same(
        micros(train_data(records, RECORD_ITER, batch=1, of=4), range(6, 14)), [m for m in unbroken if m[0] >= 6]
    )


# ---------------------------------------------------------------- evaluation


@pytest.mark.parametrize("count", [1, 2, 3, 6, 7, 8, 13, 14, 15, 29, 50])
def test_evaluation_counts_every_image_once(count, raw, tmp_path):
    records = numbered(tmp_path, count)
    for ranks in (1, 2, 3, 4):
        for _ in range(2):  # the second validation as the first
            seen = []
            for rank in range(ranks):
                for images, labels, counted in evaluation_data(records, raw, 7, rank, ranks):
                    assert images.shape[0] == labels.shape[0] >= counted
                    assert images[:, 0, 0, 0].asnumpy().tolist() == labels.asnumpy().tolist()
                    seen += labels.asnumpy()[:counted].tolist()
            assert sorted(seen) == list(range(count)), ranks


def test_evaluation_is_not_augmented(raw, tmp_path):
    records = make_records(tmp_path, [ramp()] * 4)
    data = replace(raw, image_size=16, augment=Augment(brightness=1.0, hue=1.0))
    ((images, _, _),) = evaluation_data(records, data)
    # The centre: columns and rows 8 to 23.
    assert all(np.array_equal(image, ramp()[8:24, 8:24].transpose(2, 0, 1)) for image in images.asnumpy())


def test_evaluation_resizes_the_shorter_side_before_cropping(raw, tmp_path):
    records = make_records(tmp_path, [ramp(width=36, height=24)])
    ((images, _, _),) = evaluation_data(records, replace(raw, eval_resize=8), 1)
    red, green, _ = images.asnumpy()[0]
    assert green[:, 0] == pytest.approx(7 * (np.arange(8) * 3 + 1), abs=8)  # all 24 rows, in 8
    assert 20 < red[0, 0] < 60 and 190 < red[0, -1] < 230  # the middle 24 of 36 columns: 6 to 29


def test_pixels_are_normalised_per_channel(tmp_path):
    records = make_records(tmp_path, [flat((100, 150, 200))] * 4)
    data = replace(RECORD_ITER, mean=[110.0, 140.0, 0.0], std=[50.0, 25.0, 10.0])
    ((images, _, _),) = evaluation_data(records, data)
    ((_, _, _, trained),) = micros(train_data(records, data), [0])
    for pixels in (images.asnumpy(), trained):
        assert pixels.shape == (4, 3, 8, 8) and pixels.dtype == np.float32
        assert pixels[2, :, 3, 5] == pytest.approx([-0.2, 0.4, 20.0])


def test_std_applies_with_a_mean_of_0(tmp_path):
    records = make_records(tmp_path, [flat((100, 150, 200))])
    ((images, _, _),) = evaluation_data(records, replace(RECORD_ITER, std=[255.0] * 3), 1)
    assert images[0, :, 0, 0].asnumpy() == pytest.approx([100 / 255, 150 / 255, 200 / 255])


# ---------------------------------------------------------------- synthetic images


def test_synthetic_batches_are_the_same_for_the_same_seed():
    def made(seed):
        reading = Reading(replace(RAW, image_size=16), 32, [0], 1, 1, 1, seed, [CPU], 1)
        (micro,) = SyntheticData(reading, 5).step(0)
        return micro.images.asnumpy(), micro.labels.asnumpy()

    images, labels = made(3)
    assert images.shape == (32, 3, 16, 16) and images.dtype == labels.dtype == np.float32
    assert abs(images.mean()) < 0.05 and abs(images.std() - 1) < 0.05
    assert set(labels) == {0, 1, 2, 3, 4}
    assert np.array_equal(images, made(3)[0]) and not np.array_equal(images, made(4)[0])


def test_synthetic_steps_have_a_batch_per_shard_and_accumulation():
    source = SyntheticData(Reading(RAW, 2, [1, 3], 4, 2, 1, 1, [CPU], 1), 5)
    assert [micro.shard for micro in source.step(7)] == [1, 1, 3, 3]


def test_synthetic_evaluation_is_on_rank_0_only():
    counts = [[count for *_, count in SyntheticData.evaluation(RAW, 5, 12, rank, 1, CPU)] for rank in (0, 1)]
    assert counts == [[12], []]


# ---------------------------------------------------------------- memory

GROWTH = """
import importlib, sys
import mxnet as mx
from mxscale.config.training_settings import Augment, Data
from mxscale.data.reader.batches import Reading
from mxscale.rundir.plan import Split
TrainData, EvaluationData = (getattr(importlib.import_module(sys.argv[3]), n) for n in ("TrainData", "EvaluationData"))
records = Split(40, sys.argv[1], sys.argv[2])
data = Data(image_size=112, augment=Augment())
source = TrainData(records, Reading(data, 16, [0, 1], 2, 1, 1, 1, [mx.cpu()], 2))
def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096 / 2**20
for epoch in range(60):
    for micro in source.step(epoch):
        micro.images.wait_to_read()
    for images, labels, count in EvaluationData(records, data, 16, (0, 1), mx.cpu(), 2):
        images.wait_to_read()
    if epoch == 9:
        before = resident()
print(resident() - before)
"""


@pytest.mark.slow
def test_memory_does_not_grow_over_50_epochs(raw, tmp_path):
    records = noise(tmp_path, 40)
    done = subprocess.run(
        [sys.executable, "-c", GROWTH, records.rec, records.idx, READERS[raw.reader].module],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert float(done.stdout) < 30  # MB; a batch here is 2.4 MB
