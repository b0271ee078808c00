"""The keys of conf/plan.yaml: what may be asked for."""

import math
import re
from dataclasses import asdict, dataclass
from typing import Any, Optional

from mxscale.config.backends import MODELLED
from mxscale.config.schema import RULES, from_dict
from mxscale.util.errors import ConfigError, nearest


@dataclass(frozen=True)
class Asked:
    """The keys of conf/plan.yaml."""

    nodes: Any
    instance: Any
    comm: Any
    servers: Any
    batch: Any
    precision: Any
    compression: Any
    double_buffering: Any
    epochs: Optional[float]
    images: Optional[int]
    server_instance: Optional[str]
    server_usd_per_hour: Optional[float]
    gpus: Optional[int]
    nic_gbps: Optional[float]
    rdma: Optional[bool]
    images_per_s: Optional[float]
    calibrate: Any
    input_images_per_s: Optional[float]
    deadline_hours: Optional[float]
    budget_usd: Optional[float]
    budget_eur: Optional[float]
    output: str


def without_data(values: dict) -> dict:
    """The same settings; where the images lie is of no account to a plan."""
    for name in ("root", "train", "val"):
        values["data"][name] = values["data"][name] or "unused"
    return values


def read(own: dict) -> Asked:
    """The keys as they are given, single values checked.  Raises ConfigError."""
    asked = from_dict(own, Asked, "plan.")
    for name, value in asdict(asked).items():
        if name not in LISTS and isinstance(value, (int, float)) and not (math.isfinite(value) and value > 0):
            raise ConfigError(f"plan.{name}={value}: expected a number above 0, or null")
    return asked


def _whole(value) -> bool:
    return type(value) is int and 1 <= value <= 10**6


def _servers(value) -> bool:
    return bool(re.fullmatch(r"\d+|[1-9]\d*x", str(value)))


# key -> (what is right, in words)
LISTS = {
    "nodes": (_whole, "whole numbers from 1 to 1,000,000"),
    "batch": (_whole, "whole numbers from 1 to 1,000,000"),
    "servers": (_servers, "whole numbers, or 1x, 2x ...: so many for each node"),
    "double_buffering": (lambda value: isinstance(value, bool), "true or false"),
    "comm": (tuple(MODELLED), ""),
    "precision": (RULES["precision"].choices, ""),
    "compression": (RULES["comm.compression"].choices, ""),
    "instance": (lambda value: isinstance(value, str), "names of instances"),
}


def listed(name: str, value, default) -> list:
    """The values of plan.NAME, each once, or `default` where it is null.  Raises ConfigError."""
    values = [default] if value is None else value if isinstance(value, list) else [value]
    right, words = LISTS[name]
    if not values:
        raise ConfigError(f"plan.{name}=[]: expected a list such as '[1,2]', or one value")
    for each in values:
        if isinstance(right, tuple):
            if each not in right:
                raise ConfigError(f"plan.{name}={each}{nearest(each, right)}")
        elif not right(each):
            raise ConfigError(f"plan.{name}={each}: expected {words}")
    return list(dict.fromkeys(map(str, values) if name == "servers" else values))
