"""The typed configuration.  Pure: standard library alone.

Hydra composes YAML into a dictionary; `from_dict` turns that into the frozen `Config` below and
`checks.validate` looks at its values.  Ranks read the same dictionary back from `config.yaml`.
"""

import dataclasses
import typing
from dataclasses import dataclass, field
from typing import Any, Dict, List, Optional, Tuple

from mxscale.util.errors import ConfigError, nearest

SERVED = ("parameter_server", "dist_async")  # values of comm.backend: gradients go to servers


@dataclass(frozen=True)
class Augment:
    """What a training image goes through, in this order."""

    crop: str = "random_resized"  # random_resized | random | center
    scale: List[float] = field(default_factory=lambda: [0.08, 1.0])  # area share of random_resized
    ratio: List[float] = field(default_factory=lambda: [0.75, 1.3333333333333333])  # its aspect ratio
    pad: int = 0  # pixels added around the image before a random crop
    flip: bool = True  # horizontally, one in two
    brightness: float = 0.0  # each: at most this share up or down
    contrast: float = 0.0
    saturation: float = 0.0
    hue: float = 0.0


@dataclass(frozen=True)
class Data:
    # digits | imagefolder | recordio | synthetic, or a public set: mnist | cifar10 | cifar100 | caltech256 | imagenet
    kind: str = "digits"
    # imagefolder: root/<class>/*.jpg, or root/{train,val,test}/<class>/; public sets: where their files are, or go
    root: Optional[str] = None
    mirror: Optional[str] = None  # public sets: fetch mirror/NAME; null: from the publisher
    checksum: str = "published"  # public sets: published | first_use: what is there first is trusted
    clutter: bool = False  # caltech256: keep 257.clutter, which is no class
    train: Optional[str] = None  # recordio: the .rec of each split, its .idx beside it
    val: Optional[str] = None
    test: Optional[str] = None
    classes: Optional[List[str]] = None  # names of the classes to keep, in label order; null: all
    num_classes: Optional[int] = None  # recordio: null reads it off the labels; synthetic: 1000
    num_images: int = 1280  # synthetic alone: images per epoch
    train_per_class: Optional[int] = None  # keep this many training images of each class
    val_share: Optional[float] = 0.2  # of a set that comes without it; null: what train_per_class leaves
    test_share: float = 0.2
    split_seed: int = 0
    image_size: int = 32  # height and width that the network sees
    pack_short_side: Any = "original"  # shorter side of a packed image in pixels; original: as it is
    min_side: Optional[int] = None  # smaller images are bad; null: image_size
    pack_format: str = "jpeg"  # jpeg | png (lossless)
    pack_quality: int = 95  # of JPEG
    on_bad: str = "error"  # error | skip: what an image that can't be read does
    allow_duplicates: bool = False  # images that are in two splits: false refuses the set, true counts them
    cache: str = "runs/data"  # where packed sets are kept
    keep: str = "packed"  # packed: decoded again each epoch | ram: decoded once, in memory, for sets that fit
    eval_resize: Optional[int] = None  # shorter side before the centre crop of validation; null: as packed
    interpolation: str = "bilinear"  # bilinear | bicubic | area | lanczos: of what the loader resizes
    mean: List[float] = field(default_factory=lambda: [123.68, 116.779, 103.939])  # RGB, of 0-255
    std: List[float] = field(default_factory=lambda: [58.393, 57.12, 57.375])
    augment: Augment = field(default_factory=Augment)
    shards: Optional[int] = None  # virtual shards; null: the ranks of the first start
    threads: int = 2  # decode threads of each reader; part of what makes the order of augmentation

    @property
    def short_side(self) -> Optional[int]:
        """pack_short_side in pixels; None: as it is."""
        return None if self.pack_short_side == "original" else self.pack_short_side


@dataclass(frozen=True)
class Model:
    # null: that of the run in model.pretrained; symbol: the graph of model.pretrained; see `mxscale.models.zoo.names()`
    name: Optional[str] = "small"
    # latest | run:<MLflow's id> | a run directory | a .params file | zoo | symbol:<prefix>[@<epoch>]
    # | torch:<file> | hf:<owner>/<model>[@<revision>]
    pretrained: Optional[str] = None
    input: str = "checkpoint"  # checkpoint: image size, mean, std, ... of the weights where known | config: as in data
    freeze: str = "none"  # none | features: all but the head | stage1 ...: up to and with that stage
    zero_gamma: bool = True  # of each residual block's last BN (arXiv:1706.02677, sec. 5.1)
    bn_statistics: str = "moving"  # moving | last_batch: what validation normalises by (arXiv:1711.04325, sec. 2)


@dataclass(frozen=True)
class Optimizer:
    name: str = "nag"  # sgd | nag | adam | rmsprop_warmup | any name that mx.optimizer.create knows
    lr: float = 0.1  # at schedule.reference_batch
    momentum: Optional[float] = 0.9  # null: not passed (adam and others have none)
    weight_decay: float = 1e-4
    decay_norm_bias: bool = False  # decay BN's gamma and beta and all biases as well
    clip_gradient: Optional[float] = None  # per element, as MXNet's optimizers do
    multi_precision: bool = True  # float32 master weights of float16 networks
    params: Dict[str, Any] = field(default_factory=dict)  # passed on as they are


@dataclass(frozen=True)
class Schedule:
    kind: str = "cosine"  # constant | step | cosine | poly
    reference_batch: Optional[int] = 256  # linear scaling: lr x global batch / this; null: no scaling
    warmup_epochs: float = 0.0
    warmup_lr: Optional[float] = None  # lr that warm-up starts from; null: the unscaled lr
    milestones: List[float] = field(default_factory=lambda: [30.0, 60.0, 80.0])  # epochs, of step
    factor: float = 0.1  # of step
    factors: Optional[List[float]] = None  # of step, in place of factor: one before, between and after the milestones
    power: float = 2.0  # of poly
    final_lr: float = 0.0  # of cosine and poly, before scaling


@dataclass(frozen=True)
class Batch:
    per_device: int = 32
    accumulation: int = 1  # batches summed before an update


@dataclass(frozen=True)
class Comm:
    # horovod | local (one rank, no communicator) | device, nccl: one process drives all devices, a kvstore sums
    # | parameter_server | dist_async | auto: the fastest, by a short trial before the first step
    backend: str = "horovod"
    transport: str = "gloo"  # gloo | mpi
    bucket_mb: Optional[float] = None  # size of the buckets that gradients are exchanged in; null: by their sum
    overlap: bool = True  # while backward is still at earlier layers; false: after it
    compression: str = "none"  # none | fp16: float32 gradients travel as float16 | 2bit: parameter servers alone
    threshold: float = 0.5  # of 2bit: each number that travels is this, minus this, or 0
    double_buffering: bool = False  # apply a step's gradients one step later, exchange them meanwhile
    servers: Any = 1  # parameter servers: a number, or 1x, 2x ...: so many for each rank
    update_on: str = "worker"  # of parameter servers: worker | server
    hierarchical: bool = False  # Horovod with NCCL over MPI: sum within each machine first, then between them
    timeline: bool = False  # Horovod writes what it does and when to the run directory; it grows with every step
    probe_s: float = 30.0  # of auto: what each back end may take, its start included

    @property
    def drives_all(self) -> bool:
        """Whether one process drives all devices; else each has a process of its own."""
        return self.backend in ("device", "nccl")

    def processes(self, devices: int) -> int:
        """How many ranks' processes train on that many devices."""
        return 1 if self.drives_all else devices


@dataclass(frozen=True)
class Launch:
    ranks: Any = "auto"  # auto: the slots of hosts, else the GPUs, else up to 2 on a CPU
    hosts: Any = None  # [a:4,b:4], a hostfile, or compose: the workers of docker-compose.yml; null: this machine
    kind: str = "process"  # process | docker: ranks are processes of this machine, or in a container of it
    image: Optional[str] = None  # of docker
    device: str = "auto"  # auto | cpu | gpu
    threads: Optional[int] = None  # OMP threads of a rank; null: cores / ranks
    setup_minutes: float = 0.0  # billed before the run: booting, copying data
    start_timeout_s: float = 600.0  # from the ranks' start to their first line, and from it to their second step
    stop_grace_s: float = 120.0  # from the wish to stop until ranks are killed
    stall_s: float = 15.0  # a rank that says nothing for so long ends the attempt: stopped, hung, cut off
    restarts: int = 0  # after a failure that is not the run's own doing, go on by itself this many times


@dataclass(frozen=True)
class Machine:
    """What an hour costs.  Unknown stays unknown: no price, no cost."""

    provider: str = "local"  # local | aws | custom | owned
    instance: Optional[str] = None
    region: Optional[str] = None
    market: str = "on_demand"
    as_of: Optional[str] = None  # YYYY-MM-DD; null: the newest row
    usd_per_hour: Optional[float] = None
    eur_per_hour: Optional[float] = None
    nodes: int = 1
    billing: str = "per_second"  # per_second (60 s at least) | per_hour
    # owned: purchase spread over its years of use, and electricity
    purchase: Optional[float] = None
    currency: str = "usd"  # usd | eur: of purchase and electricity
    years: Optional[float] = None
    utilisation: float = 1.0  # share of the time in use
    watts: Optional[float] = None
    per_kwh: Optional[float] = None
    prices: Optional[str] = None  # a table of prices read beside the package's own; null: RUNS/prices.csv


@dataclass(frozen=True)
class Budget:
    """What a run may cost, all of its attempts together."""

    max_usd: Optional[float] = None  # it stops at a checkpoint before its cost is more
    max_eur: Optional[float] = None
    dry_run: bool = False  # say what the run would cost, and end
    images_per_s: Optional[float] = None  # of dry_run: of all devices; null: as an earlier run of the same config

    @property
    def bounds(self) -> Dict[str, float]:
        """{"usd": ..., "eur": ...} of those that are set."""
        given = {"usd": self.max_usd, "eur": self.max_eur}
        return {currency: most for currency, most in given.items() if most is not None}


@dataclass(frozen=True)
class Tracking:
    enabled: bool = True
    uri: Optional[str] = None  # null: MLFLOW_TRACKING_URI, else sqlite:///runs/mlflow.db
    experiment: str = "mxscale"
    timeout_s: float = 10.0  # of one request


@dataclass(frozen=True)
class Checkpoint:
    every_epochs: int = 1
    every_steps: Optional[int] = None  # as well
    keep: int = 2  # last ones, beside the best


@dataclass(frozen=True)
class Rerun:
    run: Optional[str] = None  # MLflow's id of a finished run, or its directory: run it again.  Short: rerun=ID
    strict: bool = False  # refuse where anything differs from then


@dataclass(frozen=True)
class Sweep:
    """Of a command with -m, each cell of which is a run of its own."""

    # accuracy (best val/top1) | cost (of the run), or both, in the order of the sweeper's directions
    objective: List[str] = field(default_factory=lambda: ["accuracy"])
    resume: bool = False  # go on with the newest sweep of this command line: finished cells are not run again


@dataclass(frozen=True)
class Config:
    entry: str = "train"  # train | finetune
    name: str = "run"
    seed: int = 1
    epochs: int = 20
    max_steps: Optional[int] = None  # end earlier, after this many steps
    precision: str = "float32"  # float32 | float16 | amp
    label_smoothing: float = 0.0
    log_every: int = 10  # steps between two lines of metrics
    validate_every: int = 1  # epochs; the last one is always validated
    claims: List[str] = field(default_factory=list)  # published figures (scale/tables/claims.csv) that it repeats
    target_top1: Optional[float] = None  # percent on val: time and cost to reach it are recorded
    runs: str = "runs"
    resume: Optional[str] = None  # a run directory | auto: the newest unfinished run of this config
    batch: Batch = field(default_factory=Batch)
    data: Data = field(default_factory=Data)
    model: Model = field(default_factory=Model)
    optimizer: Optimizer = field(default_factory=Optimizer)
    schedule: Schedule = field(default_factory=Schedule)
    comm: Comm = field(default_factory=Comm)
    launch: Launch = field(default_factory=Launch)
    machine: Machine = field(default_factory=Machine)
    budget: Budget = field(default_factory=Budget)
    tracking: Tracking = field(default_factory=Tracking)
    checkpoint: Checkpoint = field(default_factory=Checkpoint)
    rerun: Rerun = field(default_factory=Rerun)
    sweep: Sweep = field(default_factory=Sweep)


def origin_of(pretrained: str) -> Tuple[str, str]:
    """What `model.pretrained` is: ("symbol", "x/resnet-50") of symbol:x/resnet-50, ("zoo", ""), ("path", itself)."""
    word, _, rest = pretrained.partition(":")
    if word in (("run", "symbol", "torch", "hf") if rest else ("latest", "zoo")):
        return word, rest
    return "path", pretrained


# ---------------------------------------------------------------- dictionary -> typed


def from_dict(values: Dict[str, Any], cls=Config, where: str = ""):
    """Build `cls` from plain values.  Raises ConfigError naming an unknown key or a wrong type."""
    fields = {f.name: f for f in dataclasses.fields(cls)}
    hints = typing.get_type_hints(cls)
    taken = {}
    for key, value in values.items():
        if key not in fields:
            raise ConfigError(f"unknown key {where}{key}{nearest(key, fields, where)}")
        taken[key] = _typed(value, hints[key], f"{where}{key}")
    return cls(**taken)


def _typed(value, hint, where):
    if dataclasses.is_dataclass(hint):
        if not isinstance(value, dict):
            raise ConfigError(f"{where}={value}: expected a group of settings")
        return from_dict(value, hint, where + ".")
    if hint is Any:
        return value
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Union:
        return None if value is None else _typed(value, arguments[0], where)
    if origin is list:
        if not isinstance(value, (list, tuple)):
            raise ConfigError(f"{where}={value}: expected a list such as [1,2]")
        return [_typed(v, arguments[0], where) for v in value]
    if origin is dict:
        if not isinstance(value, dict):
            raise ConfigError(f"{where}={value}: expected a mapping such as {{a:1}}")
        return dict(value)
    return _scalar(value, hint, where)


def _scalar(value, hint, where):
    if hint is float and isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    if hint is str and isinstance(value, (int, float, str)) and not isinstance(value, bool):
        return str(value)
    if type(value) is hint:
        return value
    wanted = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}[hint]
    raise ConfigError(f"{where}={'null' if value is None else value}: expected {wanted}")


def to_dict(config) -> Dict[str, Any]:
    """The plain values again, for config.yaml."""
    return dataclasses.asdict(config)


def flatten(values: Dict[str, Any], where: str = "") -> Dict[str, Any]:
    """{'a': {'b': 1}} -> {'a.b': 1}; an empty mapping stays a value."""
    flat = {}
    for key, value in values.items():
        if isinstance(value, dict) and value:
            flat.update(flatten(value, f"{where}{key}."))
        else:
            flat[f"{where}{key}"] = value
    return flat
