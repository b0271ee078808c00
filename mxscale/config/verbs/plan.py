"""Settings of `mxscale plan`."""

from dataclasses import dataclass, field
from typing import Any, List, Optional, Union

from mxscale.config.backends import MODELLED
from mxscale.config.schema import RULES
from mxscale.config.setting import setting
from mxscale.config.verbs.common import as_json
from mxscale.util.errors import ConfigError

MARKETS = RULES["machine.market"].choices
MACHINE = f"[^:]+(:({'|'.join(MARKETS)}))?"
MACHINES = " or ".join(["INSTANCE", *(f"INSTANCE:{market}" for market in MARKETS)])
MOST = 10**6  # nodes, or images of a batch


@dataclass(frozen=True)
class Plan:
    """The first keys take a list or one value; null: the value of the named setting."""

    nodes: Union[List[int], int, None] = setting([1, 2, 4, 8], "numbers of nodes", low=1, high=MOST)
    instance: Union[List[str], str, None] = setting(
        None, "instances, such as p3.16xlarge:spot; null: machine.instance", pattern=MACHINE, form=MACHINES
    )
    comm: Union[List[str], str, None] = setting(None, "back ends; null: comm.backend", choices=tuple(MODELLED))
    servers: Union[List[str], str, None] = setting(
        "1x",
        "machines for parameter servers only: a number, or 1x, 2x for that many per node; 0: servers share the nodes",
        pattern=r"\d{1,6}|[1-9]\d{0,5}x",
        form="whole numbers of at most six digits, or a multiple of the nodes such as 1x",
    )
    batch: Union[List[int], int, None] = setting(
        None, "batch sizes per device; null: batch.per_device", low=1, high=MOST
    )
    precision: Union[List[str], str, None] = setting(
        None, "number formats; null: precision", choices=RULES["precision"].choices
    )
    compression: Union[List[str], str, None] = setting(
        None, "compressions; null: comm.compression", choices=RULES["comm.compression"].choices
    )
    double_buffering: Union[List[bool], bool, None] = setting(None, "false, true or both; null: comm.double_buffering")
    epochs: Optional[float] = setting(None, "length of the training; null: epochs", unit="epochs", above=0)
    images: Optional[int] = setting(None, "images per epoch; null: the data set's published number", low=1)
    server_instance: str = setting("c5.18xlarge", "instance of a parameter server")
    server_usd_per_hour: Optional[float] = setting(
        None, "price of a parameter server; null: the price table", unit="USD/h", above=0
    )
    gpus: Optional[int] = setting(None, "devices per node; null: those of the instance", low=1)
    nic_gbps: Optional[float] = setting(None, "bandwidth of a node; null: that of the instance", unit="Gbit/s", above=0)
    rdma: Optional[bool] = setting(
        None, "RDMA between nodes (InfiniBand, RoCE, EFA); false: TCP; null: as the instance has"
    )
    images_per_s: Optional[float] = setting(
        None,
        "throughput of one device; null: as calibrated, else a published rate of this network on this GPU, else "
        "FLOPs / FLOP/s that the GPU achieves",
        unit="images/s",
        above=0,
    )
    calibrate: Union[List[str], str, None] = setting(
        None, "directories to calibrate from: of runs, and of mxscale test-allreduce for a link"
    )
    input_images_per_s: Optional[float] = setting(
        None, "throughput of one node's input pipeline (mxscale test-io); null: no limit", unit="images/s", above=0
    )
    deadline_hours: Optional[float] = setting(None, "recommend the cheapest plan within this time", unit="h", above=0)
    budget_usd: Optional[float] = setting(None, "recommend the fastest plan within this cost", unit="USD", above=0)
    budget_eur: Optional[float] = setting(None, "recommend the fastest plan within this cost", unit="EUR", above=0)
    output: Optional[str] = setting(None, "folder for plan.csv, with every plan; null: RUNS/plan")

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
