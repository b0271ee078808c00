"""The settings of conf/plan.yaml."""

import math
import re
from dataclasses import asdict, dataclass
from typing import Any, Optional

from mxscale.config.backends import MODELLED
from mxscale.config.schema import RULES, from_dict
from mxscale.util.errors import ConfigError, nearest


@dataclass(frozen=True)
class Settings:
    """The keys of conf/plan.yaml."""

    nodes: Any
    instance: Any
    unavailable: Any
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
    """Return the settings with placeholders for missing data paths, which a plan does not read."""
    for name in ("root", "train", "val"):
        values["data"][name] = values["data"][name] or "unused"
    return values


def read(own: dict) -> Settings:
    """Return the settings with single values checked. Raises ConfigError."""
    settings = from_dict(own, Settings, "plan.")
    for name, value in asdict(settings).items():
        if name not in LISTS and isinstance(value, (int, float)) and not (math.isfinite(value) and value > 0):
            raise ConfigError(f"plan.{name}={value}: expected a number above 0, or null")
    return settings


def _is_integer(value) -> bool:
    return type(value) is int and 1 <= value <= 10**6


def _servers(value) -> bool:
    return bool(re.fullmatch(r"\d+|[1-9]\d*x", str(value)))


def _instance(value) -> bool:
    return isinstance(value, str) and value.partition(":")[2] in ("", *RULES["machine.market"].choices)


# key -> (check or choices, description)
LISTS = {
    "nodes": (_is_integer, "whole numbers from 1 to 1,000,000"),
    "batch": (_is_integer, "whole numbers from 1 to 1,000,000"),
    "servers": (_servers, "whole numbers, or a multiple of the nodes such as 1x"),
    "double_buffering": (lambda value: isinstance(value, bool), "true or false"),
    "comm": (tuple(MODELLED), ""),
    "precision": (RULES["precision"].choices, ""),
    "compression": (RULES["comm.compression"].choices, ""),
    "instance": (_instance, "names of instances, or INSTANCE:MARKET (on_demand or spot)"),
    "unavailable": (_instance, "INSTANCE, or INSTANCE:MARKET (on_demand or spot)"),
}


def listed(name: str, value, default) -> list:
    """Return the distinct values of plan.NAME, or [default] if it is null. Raises ConfigError."""
    values = [default] if value is None else value if isinstance(value, list) else [value]
    valid, description = LISTS[name]
    if not values:
        raise ConfigError(f"plan.{name}=[]: expected a list such as '[1,2]', or one value")
    for each in values:
        if isinstance(valid, tuple):
            if each not in valid:
                raise ConfigError(f"plan.{name}={each}{nearest(each, valid)}")
        elif not valid(each):
            raise ConfigError(f"plan.{name}={each}: expected {description}")
    return list(dict.fromkeys(map(str, values) if name == "servers" else values))
