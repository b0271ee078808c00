"""The plan of a run (plan.json): the results of set-up and preparation that the ranks need.

The parent records hosts, image and weights; the preparation
records data, sizes and device; the parent then adds threads and signatures.
"""

from dataclasses import dataclass, field
from typing import Any, Dict, Optional, Tuple

from mxscale.config.sizes import Sizes


@dataclass(frozen=True)
class Split:
    """One split of the data set."""

    count: int  # images
    rec: Optional[str] = None  # path of the packed records; None: synthetic images
    idx: Optional[str] = None
    crc: Optional[str] = None  # path of the records' checksums; None: unverified
    classes: Optional[int] = None  # labels are below; None: unknown


@dataclass(frozen=True)
class Host:
    """A machine that runs ranks."""

    address: str  # for ssh
    slots: int  # ranks that it runs
    name: str  # for messages
    here: bool = False  # this machine, which needs no ssh


@dataclass(frozen=True)
class Address:
    """Where the scheduler of the parameter servers listens."""

    address: str
    port: int


@dataclass(frozen=True)
class Origin:
    """Source of the pretrained weights."""

    kind: str
    files: Dict[str, str]  # path -> SHA-256
    revision: Optional[str] = None
    input: Optional[Dict[str, Any]] = None  # the input that the weights were trained on: {key of data: value}


@dataclass(frozen=True)
class InputChange:
    """Keys of `data` that the pretrained weights changed: their new values and the configured ones."""

    taken: Dict[str, Any] = field(default_factory=dict)
    instead: Dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Plan:
    """Content of plan.json. A field is None (or empty) until its stage has recorded it."""

    # recorded by the parent (pretrained also by the preparation)
    pretrained: Optional[str] = None  # path of the weights file
    hosts: Tuple[Host, ...] = ()  # empty: this machine
    fitted_ranks: Optional[int] = None  # after a restart on fewer hosts
    scheduler: Optional[Address] = None
    # recorded by the preparation
    sizes: Optional[Sizes] = None
    splits: Dict[str, Split] = field(default_factory=dict)
    classes: Optional[int] = None
    class_names: Tuple[str, ...] = ()
    class_weights: Tuple[float, ...] = ()  # factors of the training loss in label order; empty: none
    data_digest: Optional[str] = None
    data_dir: Optional[str] = None  # of the packed set; None: synthetic images
    skipped: int = 0  # bad images
    device: Optional[str] = None  # cpu or gpu
    head: Optional[str] = None  # keep or replace: the classifier of pretrained weights
    graph: Optional[str] = None  # path of the network's symbol file
    origin: Optional[Origin] = None
    input: InputChange = field(default_factory=InputChange)
    # recorded by the parent before the ranks start
    pretrained_sha256: Optional[str] = None
    threads: Optional[int] = None  # OMP threads per rank
    weak_signature: Optional[str] = None  # signature that ignores the number of ranks
