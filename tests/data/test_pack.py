"""Packing: the digits, the cache of packed sets, and its failures."""

import dataclasses
import errno
import io
import json
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from image_trees import folder_data, make_tree, pack, paint, records, refused
from PIL import Image
from repository import ROOT

from mxscale.config.schema import Data
from mxscale.data import images, manifest, recordio, sources, tree_packer, workers
from mxscale.data import pack as packing
from mxscale.data.images import BadImage
from mxscale.data.repack import repack
from mxscale.util.errors import ConfigError

DIGITS = [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]  # images of each class


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    cache = tmp_path_factory.mktemp("digits")
    return lambda **more: pack(Data(**{**dict(kind="digits", cache=str(cache), pack_format="png"), **more}))


def test_all_digits_are_packed_once_in_three_splits(digits):
    made = digits()
    assert made["classes"] == [str(n) for n in range(10)]
    counts = {name: split["count"] for name, split in made["splits"].items()}
    assert sum(counts.values()) == 1797
    ids = [record[1] for split in counts for record in records(made, split)]
    assert sorted(ids) == list(range(1797))
    for split in ("val", "test"):  # a fifth of each class
        for part, count in zip(made["splits"][split]["per_class"], DIGITS):
            assert abs(part - count / 5) <= 0.5


def test_a_packed_digit_is_the_scan_enlarged(digits):
    *scans, labels = np.loadtxt(sources.DIGITS_FILE, delimiter=",").T
    scans = np.stack(scans, -1)
    made = digits()
    for record in list(recordio.scan(manifest.split_of(made, "val").rec))[::50]:
        scan = scans[record.id].reshape(8, 8) * 255 / 16
        image = Image.fromarray(scan.round().astype("uint8")).resize((32, 32), Image.Resampling.BICUBIC)
        got = np.asarray(Image.open(io.BytesIO(record.payload)))
        np.testing.assert_array_equal(got, np.stack([np.asarray(image)] * 3, -1))
        assert record.label == labels[record.id]


def test_classes_keep_their_order_as_labels(digits):
    made = digits(classes=["7", "2"])
    assert made["classes"] == ["7", "2"] and made["splits"]["train"]["per_class"] == [107, 107]
    labels = np.loadtxt(sources.DIGITS_FILE, delimiter=",")[:, -1]
    assert all(labels[number] == [7, 2][label] for label, number, _ in records(made, "train"))


def test_split_of_a_class_ignores_other_classes(digits):
    few = {record[1] for record in records(digits(classes=["7", "2"]), "val")}
    assert few < {record[1] for record in records(digits(), "val")}


def test_train_per_class_gives_nested_subsets(digits):
    made = {k: digits(classes=["5", "6", "7"], train_per_class=k) for k in (1, 2, 10)}
    ids = {k: {record[1] for record in records(one, "train")} for k, one in made.items()}
    assert ids[1] < ids[2] < ids[10]
    assert [made[k]["splits"]["train"]["per_class"] for k in ids] == [[k] * 3 for k in ids]
    for split in ("val", "test"):
        assert len({one["splits"][split]["sha256"] for one in made.values()}) == 1


def test_the_split_is_a_function_of_its_seed(digits):
    first, again, other = (
        digits(classes=["0", "1"], split_seed=s, pack_quality=q) for s, q in ((0, 95), (0, 90), (1, 95))
    )
    assert first["digest"] == again["digest"] != other["digest"]


def test_contiguous_shards_of_the_training_images_are_mixed(digits):
    labels = [record[0] for record in records(digits(), "train")]
    for shard in np.array_split(labels, 4):
        assert np.bincount(shard, minlength=10).min() >= 10


def test_unknown_digits_are_refused_with_a_suggestion(digits):
    with pytest.raises(ConfigError, match=r"data.classes: data=digits has no class 55: did you mean 5\?"):
        digits(classes=["1", "55"])


def stamps(folder):
    return {path.name: path.stat().st_mtime_ns for path in Path(folder).iterdir()}


def test_a_packed_set_is_found_again(tmp_path):
    data = folder_data(make_tree(tmp_path / "set", {"ant": 30, "bee": 30}), tmp_path)
    made = pack(data)
    before = stamps(made["dir"])
    assert pack(data) == made and stamps(made["dir"]) == before


def test_a_changed_source_or_setting_is_another_set(tmp_path):
    root = make_tree(tmp_path / "set", {"ant": 5, "bee": 5})
    data = folder_data(root, tmp_path)
    first = pack(data)
    paint(root / "ant" / "000.png", "white")
    os.utime(root / "ant" / "000.png", (1, 1))
    changed = pack(data)
    assert changed["dir"] != first["dir"] and changed["digest"] != first["digest"]
    paint(root / "ant" / "new.png", "white")
    assert pack(data)["dir"] not in (first["dir"], changed["dir"])
    assert manifest.intact(first["dir"]) == first  # a run may still be reading it


def test_a_damaged_set_is_packed_again(tmp_path):
    data = folder_data(make_tree(tmp_path / "set", {"ant": 5, "bee": 5}), tmp_path)
    made = pack(data)
    for name in ("train.rec", "train.idx"):
        file = Path(made["dir"]) / name
        for damage in (file.unlink, lambda file=file: file.write_bytes(file.read_bytes()[:-4])):
            damage()
            assert pack(data) == made
            assert manifest.intact(made["dir"])


def test_a_damaged_set_is_replaced_on_a_file_system_without_locks(tmp_path, monkeypatch):
    def locked(path, wait=True):
        raise OSError(errno.ENOSYS, "no locks")

    data = folder_data(make_tree(tmp_path / "set", {"ant": 5, "bee": 5}), tmp_path)
    made = pack(data)
    (Path(made["dir"]) / "train.rec").write_bytes(b"")
    monkeypatch.setattr(packing.file_lock, "locked", locked)
    assert pack(data) == made and manifest.intact(made["dir"])
    assert [path.name for path in Path(made["dir"]).parent.iterdir() if "partial" in path.name] == []


def child(data: Data, first="", **options):
    """Start a process that runs the code `first`, prepares `data` and prints its manifest."""
    code = first + (
        "import json, sys; from mxscale.config.training_settings import Augment, Data\n"
        "from mxscale.util.errors import ConfigError\n"
        "from mxscale.data.pack import prepare\n"
        "values = json.loads(sys.argv[1]); values['augment'] = Augment(**values['augment'])\n"
        "try: print(json.dumps(prepare(Data(**values), workers=2)))\n"
        "except ConfigError as error: sys.exit(f'refused: {error}')"
    )
    return subprocess.Popen(
        [sys.executable, "-c", code, json.dumps(dataclasses.asdict(data))],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options,
    )  # fmt: skip


def test_two_processes_pack_a_set_once(tmp_path):
    data = folder_data(make_tree(tmp_path / "set", {"ant": 60, "bee": 60}), tmp_path, pack_short_side=300)
    children = [child(data) for _ in range(2)]
    outs = [process.communicate(timeout=60) for process in children]
    assert [process.returncode for process in children] == [0, 0], outs
    first, second = (json.loads(out) for out, _ in outs)
    assert first == second == pack(data)
    assert sum("another process is packing this set" in err for _, err in outs) <= 1
    visible = [name for name in os.listdir(tmp_path / "cache") if not name.endswith(".lock")]
    assert visible == [Path(first["dir"]).name]


def helpers_of(pid: int):
    """Return the pids of the packing workers of a process."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return [int(child) for child in children if running(int(child))]
    except FileNotFoundError:
        return []


WAITS_AFTER_200 = """
import signal
from mxscale.data import recordio
write = recordio.Writer.write
def write_or_wait(writer, *args, **options):
    return write(writer, *args, **options) if writer.count < 200 else signal.pause()
recordio.Writer.write = write_or_wait
"""


def killed_while_packing(data, tmp_path, at_least: int) -> Path:
    """Kill a process that packs `data` when its folder holds this many bytes of records; return the folder."""
    process = child(data, first=WAITS_AFTER_200)  # else it may be done before a busy machine lets us kill it
    deadline, files = time.monotonic() + 60, []
    while sum(file.stat().st_size for file in files) < at_least and time.monotonic() < deadline:
        files = list((tmp_path / "cache").glob(".*.partial/*.rec"))
        time.sleep(0.005)
    helpers = helpers_of(process.pid)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    assert len(helpers) == 2 and not any(map(running, helpers))
    assert not list((tmp_path / "cache").glob("imagefolder-*"))
    return files[0].parent


def noisy(tmp_path, count=120, **more) -> Data:
    """Return a set of noise, of about 40 kB per packed image; the last of each class is bad."""
    random = np.random.RandomState(0)
    for name in ("ant", "bee"):
        (tmp_path / "set" / name).mkdir(parents=True)
        for number in range(count // 2):
            pixels = random.randint(0, 256, (200, 210, 3)).astype("uint8")
            Image.fromarray(pixels).save(tmp_path / "set" / name / f"{number:03d}.jpg", quality=90)
        (tmp_path / "set" / name / "999.jpg").write_bytes(b"none")
    return folder_data(tmp_path / "set", tmp_path, pack_format="jpeg", pack_short_side=160, on_bad="skip", **more)


def contents(made):
    return {path.name: path.read_bytes() for path in Path(made["dir"]).iterdir()}


def unbroken(data, tmp_path):
    return contents(pack(dataclasses.replace(data, cache=str(tmp_path / "other"))))


@pytest.mark.slow
@pytest.mark.parametrize("damage", ["nothing", "records", "journal", "lost records"])
def test_a_killed_packing_is_continued(tmp_path, damage, monkeypatch):
    data = noisy(tmp_path, 400)
    folder = killed_while_packing(data, tmp_path, 2 << 20)
    kept = (folder / "train.rec").stat().st_size
    if damage in ("records", "journal"):
        file = folder / ("train.rec" if damage == "records" else "journal")
        content = bytearray(file.read_bytes())
        content[len(content) // 2] ^= 1
        file.write_bytes(content)
    elif damage == "lost records":
        (folder / "train.rec").unlink()
    packed = []
    monkeypatch.setattr(tree_packer, "repack", lambda source, recipe: packed.append(source) or repack(source, recipe))
    made = pack(data)
    assert contents(made) == unbroken(data, tmp_path)
    first = [source for source in packed if str(tmp_path) in source]
    again = len(first) - 402  # the unbroken one packs all
    assert kept >= 2 << 20 and (0 < again < 400 if damage != "lost records" else again == 402)
    assert not list((tmp_path / "cache").glob(".*.partial"))


def running(pid: int) -> bool:
    try:
        return "mxscale.data.workers" in Path(f"/proc/{pid}/cmdline").read_text()
    except FileNotFoundError:
        return False


def test_crashed_decoder_is_restarted(tmp_path):
    paint(tmp_path / "a.png", "red")
    worker, examine = workers._Worker(), images.examine
    try:
        worker.wait()
        os.kill(worker._child.pid, signal.SIGKILL)
        (result,) = worker([str(tmp_path / "a.png")], examine)
        assert isinstance(result, BadImage) and str(result) == "its decoder crashed (signal SIGKILL)"
        assert worker([str(tmp_path / "a.png")], examine)[0].side == 16
    finally:
        worker.close()


def test_only_the_image_that_crashes_a_decoder_is_bad():
    worker = workers._Worker()
    try:
        worker.wait()
        first, second, third = worker([b"0", b"__import__('os').abort()", b"2"], eval)
        assert (first, third) == (0, 2) and str(second) == "its decoder crashed (signal SIGABRT)"
    finally:
        worker.close()


def limit_files():
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))


def test_a_full_disk_is_one_line_naming_the_cache(tmp_path):
    data = folder_data(make_tree(tmp_path / "set", {"ant": 20, "bee": 20}), tmp_path, pack_short_side=500)
    process = child(data, preexec_fn=limit_files)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    last = err.strip().splitlines()[-1]
    assert last.startswith(f"refused: data.cache={data.cache}: cannot write there (File too large)")
    assert not list((tmp_path / "cache").glob(".*.partial")) and not list((tmp_path / "cache").glob("imagefolder-*"))


def test_an_unwritable_cache_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    assert refused(Data(kind="digits", cache=str(tmp_path / "file" / "cache"))).startswith(
        f"data.cache={tmp_path}/file/cache: cannot write there (Not a directory)"
    )
    assert "data.cache=/proc/cache: cannot write there" in refused(Data(kind="digits", cache="/proc/cache"))


def test_any_number_of_workers_packs_the_same_bytes(tmp_path):
    data = noisy(tmp_path, 60)
    made = [pack(dataclasses.replace(data, cache=str(tmp_path / f"{n}")), workers=n) for n in (1, 2, 5)]
    first, second, third = map(contents, made)
    assert first == second == third and len(made[0]["skipped"]) == 2


def test_progress_has_rate_and_time_left(capfd, monkeypatch):
    times = iter([0, 10, 10, 20, 20])
    monkeypatch.setattr(workers.time, "monotonic", lambda: next(times))
    with workers.Progress("packing", 1000, " images") as bar:
        bar.add(100)
        bar.add(200)
    assert capfd.readouterr().err.splitlines() == [
        "packing: 100 of 1,000 images, 10 images/s, 90 s left",
        "packing: 300 of 1,000 images, 20 images/s, 35 s left",
    ]
