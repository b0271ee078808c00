"""Settings of verbs that measure this machine."""

from dataclasses import dataclass, field
from typing import List, Optional

from mxscale.config.readers import READERS
from mxscale.config.setting import setting
from mxscale.config.verbs.common import MAX_THREADS
from mxscale.util.errors import ConfigError


@dataclass(frozen=True)
class Diagnose:
    seconds: float = setting(
        10.0,
        "time of each probe without start and warm-up; with slow steps longer, for three intervals",
        unit="s",
        above=0,
    )
    warmup_steps: int = setting(5, "steps before a probe is measured, in addition to one interval", low=1)
    # one repetition has no spread
    repeats: int = setting(3, "number of measurements of each probe, interleaved", low=2)


@dataclass(frozen=True)
class DiagnoseVerb:
    diagnose: Diagnose = field(default_factory=Diagnose)


@dataclass(frozen=True)
class FindLr:
    lr_min: float = setting(1e-5, "first rate, as in optimizer.lr before scaling by the global batch", above=0)
    lr_max: float = setting(10.0, "last rate, if the loss does not diverge before", above=0)
    steps: int = setting(100, "number of steps", low=20)

    def __post_init__(self):
        if 0 < self.lr_max <= self.lr_min:
            raise ConfigError(f"find_lr.lr_min={self.lr_min:g}: expected less than find_lr.lr_max={self.lr_max:g}")


@dataclass(frozen=True)
class FindLrVerb:
    find_lr: FindLr = field(default_factory=FindLr)


@dataclass(frozen=True)
class InputRates:
    seconds: float = setting(
        5.0,
        "time of each measurement; two readers and three numbers of threads take 15 measurements",
        unit="s",
        above=0,
    )
    threads: List[int] = setting(
        [],
        "values of data.threads, such as [1,2,4]; none: 1, 2, 4, ... and the number of cores",
        low=1,
        high=MAX_THREADS,
    )
    readers: Optional[List[str]] = setting(
        list(READERS), "values of data.reader", choices=READERS, required=f"io.readers=[{','.join(READERS)}]"
    )


@dataclass(frozen=True)
class InputRatesVerb:
    io: InputRates = field(default_factory=InputRates)


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
class AllReduceVerb:
    allreduce: AllReduce = field(default_factory=AllReduce)
