"""The settings that a verb of `mxscale` has besides those of a run."""

import re
from dataclasses import dataclass, field, make_dataclass
from typing import Any, List, Optional, Union

from mxscale.config.backends import MODELLED
from mxscale.config.readers import READERS
from mxscale.config.schema import RULES
from mxscale.config.setting import FOLDER, setting
from mxscale.config.training_settings import MAX_PIXELS
from mxscale.util.errors import ConfigError

MAX_THREADS = RULES["data.threads"].high
MODEL = "run directory, latest, run:ID, exported .onnx file, or weights as in model.pretrained (with model=NAME)"
PREDICT = "mxscale predict MODEL IMAGES, such as latest photos/"
MARKETS = RULES["machine.market"].choices
MACHINE = f"[^:]+(:({'|'.join(MARKETS)}))?"
MACHINES = " or ".join(["INSTANCE", *(f"INSTANCE:{market}" for market in MARKETS)])
REGISTERED = "[^/:]+"  # names of models that MLflow accepts
Texts, Integers = Union[List[str], str, None], Union[List[int], int, None]
MOST = 10**6  # nodes, or images of a batch


def grouped(key: str, settings: type) -> type:
    """Return the dataclass of a verb whose settings are a group, such as io.seconds."""
    return make_dataclass(settings.__name__, [(key, settings, field(default_factory=settings))], frozen=True)


def file_name(help: str, *endings: str) -> Any:
    """Return a setting for the name of a file with one of these endings; its default is null."""
    pattern = rf"(?s).*({'|'.join(map(re.escape, endings))})"
    return setting(None, help, pattern=pattern, form=f"a name that ends in {', '.join(endings)}")


def as_json(what: str) -> Any:
    return setting(False, f"print {what} in place of the table")


@dataclass(frozen=True)
class Predict:
    source: Optional[str] = setting(None, MODEL, required=PREDICT)
    images: Optional[List[str]] = setting([], "files and folders of images", required=PREDICT)
    top: int = setting(5, "classes for each image", low=1)
    output: Optional[str] = file_name("file of predictions; null: lines in the terminal", ".csv")
    sheet: Optional[str] = file_name("file with a picture of each image beside its predictions", ".html")


@dataclass(frozen=True)
class Evaluate:
    source: Optional[str] = setting(None, MODEL, required="mxscale evaluate MODEL, such as latest")
    split: Optional[str] = setting(
        None, "null: test, else val; all: every image of a set without splits", choices=("train", "val", "test", "all")
    )
    output: Optional[str] = setting(None, "folder to write to; null: evaluation/SPLIT in the run directory")


@dataclass(frozen=True)
class Export:
    source: Optional[str] = setting(
        None, "run directory, latest, run:ID, or weights as in model.pretrained", required="mxscale export MODEL"
    )
    format: str = setting(
        "onnx",
        "onnx: with normalisation; symbol: MXNet's PREFIX-symbol.json and PREFIX-0000.params; safetensors: weights",
        choices=("onnx", "symbol", "safetensors"),
    )
    output: Optional[str] = setting(
        None,
        "file, or prefix of symbol; null: model.onnx, model or model.safetensors in the run directory",
        pattern="(?s).*[^/]",
        form="the name of a file",
    )


@dataclass(frozen=True)
class Register:
    source: Optional[str] = setting(
        None, "run directory, latest or run:ID", required="mxscale register RUN NAME, such as latest flowers"
    )
    registered: Optional[str] = setting(
        None,
        "name; its alias champion moves to this version if the val top-1 is higher; null: log only",
        pattern=REGISTERED,
        form="a name without / and :, such as flowers",
    )


@dataclass(frozen=True)
class Layers:
    networks: List[str] = setting([], "names of networks; none: all")
    image_size: Optional[int] = setting(
        None, "side of the input; null: what the network was designed for", unit="pixels", low=1, high=MAX_PIXELS
    )
    classes: Optional[int] = setting(None, "number of classes; null: 1000, or 10 for small images", low=2, high=MOST)
    output: Optional[str] = setting(None, "CSV file; null: a table in the terminal")


@dataclass(frozen=True)
class Diagnose:
    seconds: float = setting(
        10.0, "time of each probe without start and warm-up; longer if steps are slow", unit="s", above=0
    )
    warmup_steps: int = setting(5, "steps before a probe is measured, in addition to one interval", low=1)
    repeats: int = setting(3, "number of measurements of each probe, interleaved", low=2)  # one has no spread


@dataclass(frozen=True)
class InputRates:
    seconds: float = setting(5.0, "time of each measurement", unit="s", above=0)
    threads: List[int] = setting(
        [], "values of data.threads, such as [1,2,4]; none: 1, 2, 4, ... and all cores", low=1, high=MAX_THREADS
    )
    readers: Optional[List[str]] = setting(
        list(READERS), "values of data.reader", choices=READERS, required=f"io.readers=[{','.join(READERS)}]"
    )


@dataclass(frozen=True)
class DataPage:
    root: Optional[str] = setting(None, "folder of images, as data.root", required="mxscale data ROOT")
    output: Optional[str] = setting(
        None, "page to write; null: RUNS/data.html", pattern="(?s).+\\.html", form="a name that ends in .html"
    )


@dataclass(frozen=True)
class AllReduce:
    seconds: float = setting(1.0, "time of each size; at least 5 and at most 200 all-reduces", unit="s", above=0)
    sizes: Optional[List[int]] = setting(
        [4**power for power in range(5, 13)] + [4**13],
        "sizes of float32 arrays, multiples of 4",
        unit="bytes",
        low=4,
        high=2**30,
        required="allreduce.sizes=[65536,67108864]",
    )

    def __post_init__(self):
        for size in self.sizes or ():
            if size % 4:
                raise ConfigError(f"allreduce.sizes={size}: expected multiples of 4 bytes, the size of a float32")


@dataclass(frozen=True)
class Plan:
    """The first keys take a list or one value; null: the value of the named setting."""

    nodes: Integers = setting([1, 2, 4, 8], "numbers of nodes", low=1, high=MOST)
    instance: Texts = setting(
        None, "instances, such as p3.16xlarge:spot; null: machine.instance", pattern=MACHINE, form=MACHINES
    )
    comm: Texts = setting(None, "back ends; null: comm.backend", choices=tuple(MODELLED))
    servers: Texts = setting(
        "1x",
        "machines for parameter servers only: a number, or 1x, 2x for that many per node; 0: servers share the nodes",
        pattern=r"\d{1,6}|[1-9]\d{0,5}x",
        form="whole numbers of at most six digits, or a multiple of the nodes such as 1x",
    )
    batch: Integers = setting(None, "batch sizes per device; null: batch.per_device", low=1, high=MOST)
    precision: Texts = setting(None, "number formats; null: precision", choices=RULES["precision"].choices)
    compression: Texts = setting(
        None, "compressions; null: comm.compression", choices=RULES["comm.compression"].choices
    )
    double_buffering: Union[List[bool], bool, None] = setting(None, "false, true or both; null: comm.double_buffering")
    epochs: Optional[float] = setting(None, "length of the training; null: epochs", unit="epochs", above=0)
    target: Optional[float] = setting(
        None,
        "validation top-1 to train to, in place of epochs, which then depend on the batch",
        unit="%",
        low=0,
        high=100,
    )
    images: Optional[int] = setting(None, "images per epoch; null: the data set's published number", low=1)
    server_instance: str = setting("c5.18xlarge", "instance of a parameter server")
    server_usd_per_hour: Optional[float] = setting(
        None, "price of a parameter server; null: the price table", unit="USD/h", above=0
    )
    gpu: Optional[str] = setting(None, "GPU, such as V100; null: that of the instance")
    gpus: Optional[int] = setting(None, "devices per node; null: those of the instance", low=1)
    nic_gbps: Optional[float] = setting(None, "bandwidth of a node; null: that of the instance", unit="Gbit/s", above=0)
    rdma: Optional[bool] = setting(None, "RDMA between nodes; false: TCP; null: as the instance has")
    images_per_s: Optional[float] = setting(
        None,
        "throughput of a device; null: as calibrated, else from published rates and peaks",
        unit="images/s",
        above=0,
    )
    calibrate: Texts = setting(None, "directories of runs and of mxscale test-allreduce to calibrate from")
    input_images_per_s: Optional[float] = setting(
        None, "throughput of one node's input pipeline (mxscale test-io); null: no limit", unit="images/s", above=0
    )
    deadline_hours: Optional[float] = setting(None, "recommend the cheapest plan within this time", unit="h", above=0)
    budget_usd: Optional[float] = setting(None, "recommend the fastest plan within this cost", unit="USD", above=0)
    budget_eur: Optional[float] = setting(None, "recommend the fastest plan within this cost", unit="EUR", above=0)
    output: Optional[str] = setting(None, "folder for plan.csv, with every plan; null: RUNS/plan")
    task: Optional[str] = file_name("SkyPilot task to write for the first recommended plan; null: none", ".yaml")
    image: Optional[str] = setting(None, "task: image that trains, in a registry (docs/scale-out.md)")
    storage: Optional[str] = setting(
        None,
        "task: where run directories stay, a bucket or an NFS share",
        pattern=r"[a-z0-9]+://[^/].*|[\w.-]+:/(?!/).*",
        form="s3://BUCKET or HOST:/PATH",
    )

    def listed(self, key: str, default: Any) -> list:
        """Return the distinct values of a key, or [default] if it is null. Raises ConfigError."""
        value = getattr(self, key)
        values = value if isinstance(value, list) else [default if value is None else value]
        if not values:
            raise ConfigError(f"plan.{key}=[]: expected a list such as '[1,2]', or one value")
        return list(dict.fromkeys(values))


@dataclass(frozen=True)
class PlanVerb:
    plan: Plan = field(default_factory=Plan)
    json: bool = as_json("one JSON object")


@dataclass(frozen=True)
class Prices:
    update: Optional[str] = setting(None, "SkyPilot's CLOUD/vms.csv, or skypilot: its cache; added to machine.prices")
    as_of: Optional[str] = setting(None, "date of the imported prices, YYYY-MM-DD; null: today, or of a cached file")
    source: Optional[str] = setting(
        None, "name of the source, to which the file's digest is appended; null: the file's name"
    )
    minutes: Optional[List[float]] = setting(
        None, "[SET-UP,RUN]: calculate the bill of these minutes", unit="min", low=0, high=10**7, length=2
    )


@dataclass(frozen=True)
class Score:
    points: Optional[str] = setting(
        None, "CSV with the columns of mxscale/tables/published_scaling.csv", required="points=PATH"
    )
    json: bool = as_json("one JSON object")


@dataclass(frozen=True)
class Report:
    action: str = setting("report", "what is reported", choices=("report", "claims"))
    experiment: Optional[str] = setting(
        None, "name of the MLflow experiment; null: tracking.experiment, or all experiments for claims"
    )
    output: Optional[str] = setting("report", "output folder", required="name the folder to write to")


@dataclass(frozen=True)
class Replay:
    replay: Optional[str] = setting(None, "name of a replay, or all; null: list them")
    scale: str = setting("full", "full: as published; small: a scaled-down analogue", choices=("full", "small"))
    slow_hosts: Optional[List[str]] = setting(
        None, "scale=small: hosts with slow links for trials that compare exchanges, [A:1,B:1] (docs/replays.md)"
    )
    rounds: int = setting(3, "scale=small: runs of each trial, with the seeds 1, 2, ... in turn", low=1)
    mnist: str = setting("data/mnist", "scale=small: folder with MNIST's four files, or to download them to", **FOLDER)
    photographs: Optional[str] = setting(
        None, "scale=small: folder of photographs, DIR/<class>/<image>.jpg, in place of generated ones", **FOLDER
    )
    again: bool = setting(False, "true: run finished runs again")
    output: Optional[str] = setting(None, "folder of the pages; null: RUNS/replays", pattern="(?s).+", form="a folder")


@dataclass(frozen=True)
class Runs:
    words: List[str] = setting([], "list only runs whose state, network, data set and directory contain these words")
    limit: int = setting(20, "runs to list", low=1)
    json: bool = as_json("one JSON array with all metrics")


@dataclass(frozen=True)
class Sync:
    run: Optional[str] = setting(None, "the run directory", required="run=PATH")


@dataclass(frozen=True)
class Doctor:
    json: bool = as_json("one JSON object with all facts")
