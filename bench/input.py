"""Images/s of input pipelines on the same JPEGs with the same augmentation, and of decoders alone.

    python bench/input.py [--quick] [--photographs DIR]

The photographs (JPEGs in a folder; without one, generated images that resemble them to a decoder) are packed with a
shorter side of 256 pixels at quality 95. Every pipeline reads these packed JPEGs and returns training batches of 32:
224 px, randomly resized and cropped, flipped. No network computes. Every run is a separate process, and the rows take
turns. "per CPU-second" counts the CPU time of all processes of a pipeline. Batches of `turbojpeg`, PyTorch and DALI are
uint8, those of the others normalised float32. Rows of packages that are not installed (torchvision, nvidia-dali) are
omitted.
"""

import importlib.util
import io
import itertools
import json
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import measure
import numpy as np
import psutil
from PIL import Image

from mxscale.config.schema import Data, from_dict
from mxscale.config.validation import validate

BATCH, SIDE = 32, 224
JPEG_QUALITY = 91  # makes the files 20 to 60 KB
MEAN, STD = Data().mean, Data().std


# ---------------------------------------------------------------- the images


def photograph(seed: int) -> bytes:
    """Return a JPEG whose detail decreases with frequency as in a photograph, with camera noise."""
    random = np.random.RandomState(seed)
    total = np.zeros((375, 500, 3))
    for octave in range(1, 8):
        grid = random.randint(0, 256, (2**octave * 3 // 4 + 1, 2**octave + 1, 3)).astype("uint8")
        layer = np.asarray(Image.fromarray(grid).resize((500, 375), Image.Resampling.BICUBIC), "float64")
        total += (layer - 128) / 1.8**octave
    total += random.normal(0, random.uniform(0.03, 0.12) * 128, total.shape) / 2
    out = io.BytesIO()
    Image.fromarray(np.clip(128 + total, 0, 255).astype("uint8")).save(out, "JPEG", quality=JPEG_QUALITY)
    return out.getvalue()


def make(folder: Path, photographs: str, count: int) -> str:
    """Pack the photographs as JPEG and as BMP, and write the packed JPEGs as files; return their sizes as text."""
    files = sorted(Path(photographs).rglob("*.[jJ][pP]*[gG]"))[:count] if photographs else []
    for number in range(len(files) or count):
        path = folder / "set" / str(number % 10) / f"{number:05}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(files[number].read_bytes() if files else photograph(number))
    from mxscale.data import recordio

    sizes = []
    for number, record in enumerate(recordio.scan(packed(folder).rec)):
        path = folder / "files" / f"{int(record.label)}_{number:05}.jpg"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(record.payload)
        sizes.append(len(record.payload))
    packed(folder, pack_format="bmp")
    low, middle, high = (round(value / 1000) for value in (min(sizes), np.median(sizes), max(sizes)))
    what = "photographs" if files else "generated images"
    return f"{len(sizes)} {what}, packed to {low} to {high} KB, median {middle} KB"


# ---------------------------------------------------------------- pipelines: each yields the images of a batch


def config(folder: Path, **data):
    given = {"kind": "imagefolder", "root": str(folder / "set"), "pack_short_side": 256, "allow_duplicates": True,
             "image_size": SIDE, "cache": str(folder / "packed"), "on_bad": "skip",
             "val_share": 0.1, "test_share": 0.0, **data}  # fmt: skip
    return validate(from_dict({"data": given, "batch": {"per_device": BATCH}}))


def packed(folder: Path, **data):
    """Return the training records of the set as a run packs it."""
    from mxscale.data import manifest, pack

    return manifest.split_of(pack.prepare(config(folder, **data).data), "train")


def ours(folder: Path, threads: int = 1, **data):
    """One of mxscale's readers, as a rank uses it."""
    from mxscale.data import test_io

    settings = config(folder, **data).data
    yield from test_io.read(packed(folder, **data), settings, BATCH, threads)


def bare(folder: Path):
    """A hand-written ImageRecordIter."""
    import mxnet as mx

    names = ("mean_r", "mean_g", "mean_b", "std_r", "std_g", "std_b")
    records = packed(folder)
    reader = mx.io.ImageRecordIter(
        path_imgrec=records.rec, path_imgidx=records.idx, data_shape=(3, SIDE, SIDE),
        batch_size=BATCH, shuffle=True, random_resized_crop=True, min_random_area=0.08, max_random_area=1.0,
        min_aspect_ratio=0.75, max_aspect_ratio=4 / 3, rand_mirror=True, preprocess_threads=2, verbose=False,
        **dict(zip(names, [*MEAN, *STD])),
    )  # fmt: skip
    while True:
        for batch in reader:
            batch.data[0].wait_to_read()
            yield BATCH - batch.pad
        reader.reset()


def gluon(folder: Path):
    """Gluon's DataLoader with two workers over the same records."""
    from mxnet.gluon.data import DataLoader
    from mxnet.gluon.data.vision import ImageRecordDataset, transforms

    augment = transforms.Compose(
        [
            transforms.RandomResizedCrop(SIDE, scale=(0.08, 1.0), ratio=(3 / 4, 4 / 3)),
            transforms.RandomFlipLeftRight(),
            transforms.ToTensor(),
            transforms.Normalize([value / 255 for value in MEAN], [value / 255 for value in STD]),
        ]
    )
    images = ImageRecordDataset(packed(folder).rec).transform_first(augment)
    loader = DataLoader(images, BATCH, shuffle=True, last_batch="discard", num_workers=2)
    while True:
        for batch, _ in loader:
            batch.wait_to_read()
            yield BATCH


def torch(folder: Path):
    """PyTorch's DataLoader with two workers, Pillow and torchvision's transforms, over the same files."""
    from torch.utils.data import DataLoader

    options = {"shuffle": True, "drop_last": True, "num_workers": 2, "persistent_workers": True}
    loader = DataLoader(Photographs(folder), BATCH, **options)
    while True:
        for batch, _ in loader:
            yield batch.shape[0]


class Photographs:
    """JPEG files -> crops (3, SIDE, SIDE) uint8 with labels."""

    def __init__(self, folder: Path):
        from torchvision.transforms import v2

        self.paths = sorted((folder / "files").glob("*.jpg"))
        crop = v2.RandomResizedCrop(SIDE, scale=(0.08, 1.0), ratio=(3 / 4, 4 / 3))
        self.transform = v2.Compose([crop, v2.RandomHorizontalFlip(), v2.PILToTensor()])

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, number: int):
        path = self.paths[number]
        return self.transform(Image.open(path).convert("RGB")), int(path.name.partition("_")[0])


def dali(folder: Path):
    """DALI's pipeline for CPUs with two threads over the same records. Its decoder decodes only the crop."""
    from nvidia.dali import fn, pipeline_def, types

    records = packed(folder)

    @pipeline_def(batch_size=BATCH, num_threads=2, device_id=None)
    def crops():
        jpegs, labels = fn.readers.mxnet(path=[records.rec], index_path=[records.idx], random_shuffle=True)
        images = fn.decoders.image_random_crop(jpegs, random_area=[0.08, 1.0], random_aspect_ratio=[3 / 4, 4 / 3])
        images = fn.resize(images, size=[SIDE, SIDE], antialias=False)
        flip = fn.random.coin_flip()
        return fn.crop_mirror_normalize(images, mirror=flip, dtype=types.UINT8, output_layout="CHW"), labels

    pipeline = crops()
    pipeline.build()
    while True:
        pipeline.run()
        yield BATCH


# ---------------------------------------------------------------- decoders alone: complete images, one process


def contents(folder: Path):
    files = [path.read_bytes() for path in sorted((folder / "files").glob("*.jpg"))]
    return itertools.cycle(files)


def pillow(folder: Path):
    for content in contents(folder):
        Image.open(io.BytesIO(content)).load()
        yield 1


def opencv(folder: Path):
    import cv2

    for content in contents(folder):
        cv2.imdecode(np.frombuffer(content, "uint8"), cv2.IMREAD_COLOR)
        yield 1


def mxnet(folder: Path):
    import mxnet as mx

    for content in contents(folder):
        mx.image.imdecode(content, to_rgb=0).wait_to_read()
        yield 1


def turbojpeg(folder: Path):
    import simplejpeg

    for content in contents(folder):
        simplejpeg.decode_jpeg(content)
        yield 1


# ---------------------------------------------------------------- runs

PIPELINES = {
    "ours": (ours, "data.reader=turbojpeg, 1 thread"),
    "ours_2": (partial(ours, threads=2), "data.reader=turbojpeg, 2 threads"),
    "bmp": (partial(ours, pack_format="bmp"), "the same, 1 thread, data.pack_format=bmp"),
    "record_iter": (partial(ours, threads=2, reader="record_iter"), "data.reader=record_iter"),
    "bare": (bare, "a bare ImageRecordIter"),
    "gluon": (gluon, "Gluon's DataLoader, 2 workers"),
    "torch": (torch, "PyTorch's DataLoader, 2 workers, torchvision"),
    "dali": (dali, "DALI on CPUs, 2 threads"),
    "turbojpeg": (turbojpeg, "simplejpeg alone: complete images"),
    "opencv": (opencv, "OpenCV alone"),
    "pillow": (pillow, "Pillow alone"),
    "mxnet": (mxnet, "MXNet's OpenCV alone"),
}
REQUIRED = {"torch": "torchvision", "dali": "nvidia.dali"}  # package of a row that mxscale does not install


def installed(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except ModuleNotFoundError:  # of the package that contains it
        return False


def processor_time() -> float:
    """Return the CPU seconds of this process and its children."""
    here = psutil.Process()
    return sum(sum(one.cpu_times()[:2]) for one in [here, *here.children(recursive=True)])


def one(name: str, folder: Path, seconds: float) -> dict:
    """Return images/s after a warm-up of at most two seconds, and images per second of CPU time."""
    arriving = PIPELINES[name][0](folder)
    next(arriving)
    warm = time.perf_counter() + min(2, seconds)
    while time.perf_counter() < warm:
        next(arriving)
    images, began, cpu = 0, time.perf_counter(), processor_time()
    while time.perf_counter() < began + seconds:
        images += next(arriving)
    took, used = time.perf_counter() - began, processor_time() - cpu
    return {"images_per_s": images / took, "per_core": images / used, "cores": used / took}


def run(name: str, folder: Path, seconds: float) -> dict:
    argv = [sys.executable, __file__, "--one", name, "--folder", str(folder), "--seconds", str(seconds)]
    return json.loads(measure.run(argv).stdout.splitlines()[-1])


def main() -> None:
    options = measure.arguments(
        __doc__.splitlines()[0], runs=(5, "runs of each"), images=(1000, "JPEGs"), seconds=(5.0, "time of each run"),
        photographs=("", "folder of JPEGs; none: generated images"),
        one=("", "run this pipeline alone, in this process"), folder=("", "folder of its images"),
    )  # fmt: skip
    if options.one:
        print(json.dumps(one(options.one, Path(options.folder), options.seconds)))
        return
    runs, images, seconds = (1, 200, 1.0) if options.quick else (options.runs, options.images, options.seconds)
    absent = {name for name, package in REQUIRED.items() if not installed(package)}
    names = [name for name in PIPELINES if name not in absent]
    if absent:
        print(f"not installed, so omitted: {', '.join(sorted(absent))}")
    with tempfile.TemporaryDirectory() as folder:
        print(make(Path(folder), options.photographs, images), flush=True)
        pipelines = (partial(run, name, Path(folder), seconds) for name in names)
        found = dict(zip(names, measure.in_turn(*pipelines, turns=runs)))
    show(found)


def show(found: dict) -> None:
    """Print the table and the last line; ratios compare runs of the same turn."""
    figures = {}
    print(f"{'':48} {'images/s':34} {'cores':>5}  {'per CPU-s':>9}  ours over it")
    for name, results in found.items():
        row = {key: measure.spread([one[key] for one in results]) for key in results[0]}
        for key, ratio in (("images_per_s", "ours_over_it"), ("per_core", "ours_over_it_per_core")):
            row[ratio] = measure.spread([a[key] / b[key] for a, b in zip(found["ours"], results)])
        figures[name] = row
        cores, per_core = row["cores"]["median"], row["per_core"]["median"]
        shown = measure.show(row["images_per_s"], "{:.0f}")
        print(
            f"{PIPELINES[name][1]:48} {shown:34} {cores:5.2f}  {per_core:9.0f}  {measure.show(row['ours_over_it'])}, "
            f"per CPU-second {measure.show(row['ours_over_it_per_core'])}"
        )
    measure.finish(figures)


if __name__ == "__main__":
    main()
