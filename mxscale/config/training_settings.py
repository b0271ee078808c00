"""Settings of what is trained and how: data, network, optimizer, schedule, gradient exchange, checkpoints."""

import dataclasses
from dataclasses import dataclass
from typing import Any, Dict, List, Optional, Union

from mxscale.config.backends import BACKENDS, COMPRESSIONS, DEFAULT, Backend, Compression
from mxscale.config.datasets import DATASETS
from mxscale.config.optimizers import SCHEDULES
from mxscale.config.readers import READERS
from mxscale.config.setting import FOLDER, MAX_SEED, setting

MAX_PIXELS = 4096  # side of a decoded image, of which each rank holds many; 48 MB


@dataclass(frozen=True)
class Augment:
    """Augmentation of training images (docs/input.md)."""

    crop: str = setting("random_resized", "crop of a training image", choices=("random_resized", "random", "center"))
    scale: List[float] = setting(
        [0.08, 1.0], "smallest and largest share of the area in a random_resized crop", above=0, high=1, length=2
    )
    ratio: List[float] = setting(
        [0.75, 1.3333333333333333], "smallest and largest aspect ratio of a random_resized crop", above=0, length=2
    )
    pad: int = setting(0, "padding on each side before a random crop", unit="pixels", low=0, high=MAX_PIXELS)
    flip: bool = setting(True, "flip images horizontally with probability 0.5")
    brightness: float = setting(0.0, "largest relative change of brightness", low=0, high=1)
    contrast: float = setting(0.0, "largest relative change of contrast", low=0, high=1)
    saturation: float = setting(0.0, "largest relative change of saturation", low=0, high=1)
    hue: float = setting(0.0, "largest relative change of hue", low=0, high=1)
    lighting: float = setting(0.0, "standard deviation of light in ImageNet's principal colours", low=0, high=10)
    hls: List[int] = setting(
        [0, 0, 0], "largest shifts of hue (of 180), lightness and saturation (of 255)", low=0, high=255, length=3
    )
    rotate: int = setting(0, "largest rotation to either side, before the crop", unit="degrees", low=0, high=180)
    shear: float = setting(0.0, "largest shear, before the crop", low=0, high=1)
    stretch: float = setting(0.0, "largest relative change of height over width, before the crop", low=0, high=0.9)
    erase: float = setting(0.0, "probability of random erasing", low=0, high=1)
    mixup: float = setting(0.0, "alpha of the Beta distribution of mixup (arXiv:1710.09412, sec. 2); 0: off", low=0)
    cutmix: float = setting(0.0, "alpha of the Beta distribution of cutmix (arXiv:1905.04899, sec. 3.1); 0: off", low=0)
    off_epochs: int = setting(0, "last epochs without erase, mixup and cutmix", unit="epochs", low=0)

    def plain(self) -> "Augment":
        """Return the settings of the last `off_epochs`."""
        return dataclasses.replace(self, erase=0.0, mixup=0.0, cutmix=0.0)


@dataclass(frozen=True)
class Data:
    """The images: source, splits, packing and input pipeline."""

    kind: str = setting("digits", "data set", choices=DATASETS)
    root: Optional[str] = setting(
        None, "folder of the images (imagefolder) or of a public set's files, to which missing files are downloaded"
    )
    mirror: Optional[str] = setting(None, "URL of a folder to download a public set's files from; null: its publisher")
    checksum: str = setting(
        "published", "of a public set's files; first_use trusts the first download", choices=("published", "first_use")
    )
    clutter: bool = setting(False, "keep the class 257.clutter of caltech256")
    train: Optional[str] = setting(None, "training split: .rec file (recordio), list of images (imagefolder)")
    val: Optional[str] = setting(None, "validation split: .rec file (recordio), list of images (imagefolder)")
    test: Optional[str] = setting(None, "test split: .rec file (recordio), list of images (imagefolder)")
    classes: Union[List[str], str, None] = setting(
        None, "names of the classes to use, or a file with the names of all in its lines; in label order; null: all"
    )
    num_classes: Optional[int] = setting(None, "null: from the labels (recordio), 1000 (synthetic)", low=2)
    num_images: int = setting(1280, "synthetic: images per epoch", low=1)
    train_per_class: Optional[int] = setting(None, "training images to keep of each class; null: all", low=1)
    val_share: Optional[float] = setting(
        0.2, "share for validation without such a split; null: the images beyond train_per_class", low=0, high=0.9
    )
    test_share: float = setting(0.2, "share for the test if the set has no such split", low=0, high=0.9)
    split_seed: int = setting(0, "seed of the random split", low=0, high=MAX_SEED)
    image_size: int = setting(32, "height and width of the network's input", unit="pixels", low=8, high=MAX_PIXELS)
    pack_short_side: Any = setting(
        "original", "shorter side of a packed image; original: not resized", unit="pixels", keyword="original", low=8
    )
    min_side: Optional[int] = setting(
        None, "images with a shorter side are invalid; null: they are enlarged to image_size", unit="pixels", low=1
    )
    pack_format: str = setting(
        "jpeg", "format of packed images; png is lossless, bmp needs no decoding", choices=("jpeg", "png", "bmp")
    )
    pack_quality: int = setting(95, "JPEG quality of packed images", low=1, high=100)
    on_bad: str = setting("error", "invalid images: refuse the set, or skip them", choices=("error", "skip"))
    allow_duplicates: bool = setting(False, "accept and count images that occur in two splits or classes")
    cache: str = setting("runs/data", "folder for packed sets, which does not follow runs", **FOLDER)
    reader: str = setting("turbojpeg", "what reads and decodes packed images", choices=READERS)
    sampling: str = setting(
        "uniform", "images of an epoch: each once, or all classes equally often", choices=("uniform", "balanced")
    )
    eval_resize: Optional[int] = setting(
        None, "shorter side before validation's centre crop; null: as packed", unit="pixels", low=8, high=MAX_PIXELS
    )
    interpolation: str = setting(
        "bilinear", "interpolation where the input pipeline resizes", choices=("bilinear", "bicubic", "area", "lanczos")
    )
    mean: List[float] = setting([123.68, 116.779, 103.939], "mean of red, green and blue on the scale 0-255", length=3)
    std: List[float] = setting([58.393, 57.12, 57.375], "their standard deviation", above=0, length=3)
    augment: Augment = dataclasses.field(default_factory=Augment)
    shards: Optional[int] = setting(
        None, "virtual shards, which fix the order of the data; null: the ranks of the first start", low=1
    )
    threads: Any = setting(
        "auto", "decoding threads of a rank; auto: its cores, or 2 with record_iter", keyword="auto", low=1, high=256
    )

    @property
    def short_side(self) -> Optional[int]:
        """pack_short_side in pixels; None if packed images keep their size."""
        return None if self.pack_short_side == "original" else self.pack_short_side


@dataclass(frozen=True)
class Model:
    """The network and its initial weights."""

    name: Optional[str] = setting(
        "small", "network (mxscale layers); null: that of the run in model.pretrained; symbol: the graph given there"
    )
    pretrained: Optional[str] = setting(
        None,
        "initial weights: imagenet, latest, zoo, run:ID, RUN_DIR, FILE.params, torch:FILE, "
        "symbol:PREFIX[@EPOCH], hf:OWNER/MODEL",
    )
    input: str = setting(
        "checkpoint",
        "source of image size, mean and std: the pretrained weights if known (normalisation: not the size), or data",
        choices=("checkpoint", "normalisation", "config"),
    )
    freeze: str = setting(
        "none",
        "layers without training: all but the head (features), or up to and including a stage",
        choices=("none", "features", "stage1", "stage2", "stage3", "stage4"),
    )
    zero_gamma: bool = setting(True, "set gamma of a residual block's last batch norm to 0 (arXiv:1706.02677, 5.1)")
    bn_statistics: str = setting(
        "moving", "batch norm statistics in validation (arXiv:1711.04325, sec. 2)", choices=("moving", "last_batch")
    )


@dataclass(frozen=True)
class Optimizer:
    """The optimizer and its hyperparameters."""

    name: str = setting("nag", "sgd, nag, adam, rmsprop_warmup, or any other optimizer of MXNet")
    lr: float = setting(0.1, "learning rate at schedule.reference_batch", low=0)
    momentum: Optional[float] = setting(0.9, "momentum; null: the optimizer has none (adam)", low=0, high=1)
    weight_decay: float = setting(1e-4, "weight decay", low=0)
    decay_norm_bias: bool = setting(False, "apply weight decay to biases and to batch norm's gamma and beta as well")
    clip_gradient: Optional[float] = setting(None, "largest absolute value in a gradient; null: any", low=0)
    clip_norm: Optional[float] = setting(None, "largest norm of all gradients (arXiv:1211.5063); null: any", above=0)
    ema_decay: Optional[float] = setting(
        None, "decay of the weights' moving average, which is validated and exported; null: none", above=0, high=0.99999
    )
    multi_precision: bool = setting(True, "keep float32 master weights of float16 networks")
    params: Dict[str, Any] = setting({}, "further arguments of the optimizer, passed unchanged")


@dataclass(frozen=True)
class Schedule:
    """The learning rate over the epochs."""

    kind: str = setting("cosine", "shape of the learning rate after warm-up", choices=tuple(SCHEDULES))
    reference_batch: Optional[int] = setting(
        256, "linear scaling: lr x global batch / reference_batch; null: no scaling", unit="images", low=1
    )
    warmup_epochs: float = setting(0.0, "length of the linear warm-up", unit="epochs", low=0)
    warmup_lr: Optional[float] = setting(
        None, "learning rate at the start of warm-up; null: the unscaled lr, or the effective one if lower", low=0
    )
    milestones: List[float] = setting([30.0, 60.0, 80.0], "step: when the learning rate changes", unit="epochs")
    factor: float = setting(0.1, "step: factor at each milestone", low=0, high=1)
    factors: Optional[List[float]] = setting(
        None, "step: in place of factor, one factor of lr before, between and after the milestones", low=0
    )
    power: float = setting(2.0, "poly: exponent", low=0)
    final_lr: float = setting(0.0, "cosine, poly: learning rate at the end, before scaling", low=0)
    steps: Optional[int] = setting(
        None, "cosine, poly: step at which final_lr is reached; null: the last", unit="steps", low=1
    )


@dataclass(frozen=True)
class Batch:
    """Batch sizes. The global batch is per_device x devices x accumulation."""

    per_device: int = setting(32, "images per device and forward pass", unit="images", low=1)
    accumulation: int = setting(1, "batches summed before an update", low=1)


@dataclass(frozen=True)
class Comm:
    """The exchange of gradients between ranks."""

    backend: str = setting(DEFAULT, "communication back end", choices=BACKENDS)
    transport: str = setting("gloo", "transport of Horovod and of the launch", choices=("gloo", "mpi"))
    bucket_mb: Optional[float] = setting(None, "size of a gradient bucket; null: automatic", unit="MiB", low=0.001)
    overlap: bool = setting(True, "exchange gradients during the backward pass; false: after it")
    compression: str = setting("none", "gradients in transit", choices=COMPRESSIONS)
    double_buffering: bool = setting(False, "apply gradients one step late and exchange them during that step")
    servers: Any = setting(1, "parameter servers: a number, or 1x, 2x, ... for that many per rank process", low=1)

    @property
    def entry(self) -> Backend:
        """The registry entry of the back end, which states its capabilities."""
        return BACKENDS[self.backend]

    @property
    def in_transit(self) -> Compression:
        """The registry entry of the compression."""
        return COMPRESSIONS[self.compression]

    def processes(self, devices: int, nodes: int = 1) -> int:
        """Return the number of rank processes that train on that many devices of that many machines."""
        if self.entry.process_per_node:
            return nodes
        return 1 if self.entry.drives_all_devices else devices


@dataclass(frozen=True)
class Checkpoint:
    """Interval and number of checkpoints."""

    every_epochs: int = setting(1, "interval between checkpoints", unit="epochs", low=1)
    every_steps: Optional[int] = setting(None, "additional checkpoints at this interval", unit="steps", low=1)
    keep: int = setting(2, "number of most recent checkpoints to keep in addition to the best", low=1)
