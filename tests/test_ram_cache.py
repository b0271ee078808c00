"""data.keep=ram: decoded images in memory give the batches that packed ones give."""

import io
import os
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import mxnet as mx
import numpy as np
import pytest
from composed import composed
from PIL import Image
from test_loader import AUGMENTED, RAW, micros, same, train_data

from mxscale.data import ram_cache, recordio
from mxscale.data.loader import EvaluationData
from mxscale.rundir import directory
from mxscale.rundir.plan import Host, Split
from mxscale.train import prepare
from mxscale.util.errors import ConfigError

CPU = mx.cpu()


def jpegs(folder, count=50) -> Split:
    """Write JPEGs of various sizes and shapes, some of them grey."""
    random = np.random.RandomState(0)
    with recordio.Writer(folder, "j") as writer:
        for number in range(count):
            height, width = random.randint(20, 60, 2)
            shape = (height, width) if number % 10 == 9 else (height, width, 3)
            out = io.BytesIO()
            Image.fromarray(random.randint(0, 256, shape).astype("uint8")).save(out, "JPEG", quality=90)
            writer.write(number, number, out.getvalue())
        writer.close()
    return Split(count, str(folder / "j.rec"), str(folder / "j.idx"))


def in_memory(data):
    return replace(data, keep="ram")


@pytest.mark.parametrize("data", [RAW, AUGMENTED], ids=["plain", "augmented"])
def test_batches_are_bit_identical_to_packed(data, tmp_path):
    records = jpegs(tmp_path)
    for of, accumulation in ((1, 1), (4, 1), (2, 2)):
        settings = {"of": of, "accumulation": accumulation}
        packed = micros(train_data(records, data, 5, **settings), range(9))  # into the third epoch and later
        assert same(packed, micros(train_data(records, in_memory(data), 5, **settings), range(9))), settings


def test_ranks_and_resumes_read_identical_batches(tmp_path):
    records = jpegs(tmp_path)
    packed = micros(train_data(records, AUGMENTED, 3, of=4), range(10))
    for ranks in (2, 4):
        sources = [train_data(records, in_memory(AUGMENTED), 3, rank, ranks, of=4) for rank in range(ranks)]
        found = [micro for source in sources for micro in micros(source, range(4, 10))]
        found = sorted(found, key=lambda m: (m[0], m[1]))
        assert same(found, [m for m in packed if m[0] >= 4])


def test_short_shards_wrap_as_packed(tmp_path):
    records = jpegs(tmp_path, 9)
    packed = micros(train_data(records, AUGMENTED, 1, of=8), range(3))
    assert same(packed, micros(train_data(records, in_memory(AUGMENTED), 1, of=8), range(3)))


def test_evaluation_reads_identical_images(tmp_path):
    records = jpegs(tmp_path)
    data = replace(RAW, eval_resize=12)
    for rank in (0, 1):
        for _ in range(2):
            batches = [list(EvaluationData(records, one, 7, (rank, 2), CPU)) for one in (data, in_memory(data))]
            for (images, labels, count), (kept_images, kept_labels, kept_count) in zip(*batches, strict=True):
                assert np.array_equal(images.asnumpy(), kept_images.asnumpy())
                assert labels.asnumpy().tolist() == kept_labels.asnumpy().tolist() and count == kept_count


def test_images_are_decoded_once(tmp_path, monkeypatch):
    records = jpegs(tmp_path)
    source = train_data(records, in_memory(RAW), 5)
    micros(source, range(2))
    monkeypatch.setattr(ram_cache, "decoded", lambda *_: pytest.fail("decoded again"))
    assert len(micros(source, range(10, 32))) == 22


def test_a_rank_caches_only_its_shards_within_the_estimate(tmp_path):
    records = jpegs(tmp_path)
    source = train_data(records, in_memory(RAW), 5, rank=1, ranks=2, of=4)
    micros(source, range(1))
    taken = {part: os.fstat(found.rec.fileno()).st_size for (_, part, _), found in source.cache.parts.items()}
    assert sorted(taken) == [1, 3]
    for part, size in taken.items():
        estimate = ram_cache.bytes_of(records.rec, ram_cache.offsets_of(records.idx, (part, 4)))
        assert 0.9 * estimate < size <= estimate


def test_the_number_of_processes_does_not_change_the_records(tmp_path):
    records = jpegs(tmp_path, 140)
    contents = set()
    for workers in (1, 2):
        memory = ram_cache.decoded(records.rec, ram_cache.offsets_of(records.idx, (0, 1)), workers)
        with memory.names() as (rec, idx):
            contents.add((Path(rec).read_bytes(), Path(idx).read_bytes()))
    assert len(contents) == 1


def test_no_file_remains(tmp_path, monkeypatch):
    records = jpegs(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    assert micros(train_data(records, in_memory(RAW), 5), range(25))
    assert os.listdir(tmp_path / "tmp") == []


def test_images_beyond_memory_are_refused(tmp_path, monkeypatch):
    records = jpegs(tmp_path)
    monkeypatch.setattr(ram_cache, "available_memory", lambda: 1000)
    message = r"data\.keep=ram: .* need 0\.00 GB, and 0\.00 GB .* free here .*data\.keep=packed"
    with pytest.raises(ConfigError, match=message):
        micros(train_data(records, in_memory(RAW), 5), range(1))
    with pytest.raises(ConfigError, match=r"data\.keep=ram"):
        ram_cache.announce({"train": records, "val": records}, 1.0)


def test_the_memory_is_reported_in_advance(tmp_path, capsys):
    records = jpegs(tmp_path)
    ram_cache.announce(dict.fromkeys(("train", "val", "test"), records), 0.5)
    assert capsys.readouterr().err.startswith("data.keep=ram: 0.00 GB for the decoded images, ")


DIES = """
import os, sys
import mxnet as mx
from mxscale.config.schema import Data
from mxscale.data.loader import EvaluationData
from mxscale.rundir.plan import Split
records = Split(50, sys.argv[1], sys.argv[2])
for images, *_ in EvaluationData(records, Data(image_size=8, keep="ram"), 5, (0, 1), mx.cpu()):
    os.kill(os.getpid(), 9)
"""


def test_a_killed_rank_leaves_no_memory(tmp_path):
    records = jpegs(tmp_path)
    (tmp_path / "tmp").mkdir()
    before = shared_memory()
    done = subprocess.run(
        [sys.executable, "-c", DIES, records.rec, records.idx],
        cwd=Path(__file__).resolve().parents[1], env={**os.environ, "TMPDIR": str(tmp_path / "tmp")},
    )  # fmt: skip
    assert done.returncode == -9
    assert os.listdir(tmp_path / "tmp") == [] and shared_memory() <= before


def shared_memory() -> set:
    """Return the names in /dev/shm except semaphores, which other tests create."""
    return {name for name in os.listdir("/dev/shm") if not name.startswith("sem.")}


@pytest.mark.slow
def test_packed_and_ram_end_with_the_same_weights(cli):
    packed, ram = (cli("train", "launch.ranks=2", "max_steps=7", f"data.keep={keep}") for keep in ("packed", "ram"))
    assert packed.sha == ram.sha
    assert "data.keep=ram: 0.00 GB for the decoded images" in ram.err


def test_run_beyond_memory_is_refused_by_preparation(tmp_path, data_cache, monkeypatch):
    settings = [f"runs={tmp_path}", f"data.cache={data_cache}", "launch.ranks=1"]
    run = directory.create(composed("train", *settings, "data.keep=ram"))
    monkeypatch.setattr(ram_cache, "available_memory", lambda: 10_000)
    assert prepare.main(str(run), attempt=1) == directory.REFUSED
    assert "data.keep=ram: the decoded images need" in run.read("refused.json")["error"]


def test_the_largest_share_of_several_hosts_counts():
    assert prepare.share_of_a_host() == 1
    assert prepare.share_of_a_host([Host("a", 4, "a"), Host("b", 8, "b")]) == pytest.approx(2 / 3)
