"""Differences between two runs."""

from typing import Dict, List, Mapping, NamedTuple, Optional

from mxscale.records.recorded import NOT_KNOWN, is_forecast, versions


class Difference(NamedTuple):
    key: str
    a: str
    b: str


def differences(a: Mapping[str, object], b: Mapping[str, object]) -> List[Difference]:
    """Return the keys whose values differ, sorted by name; a missing value is a dash."""
    shown = [(key, *(_text(side.get(key)) for side in (a, b))) for key in sorted({*a, *b})]
    return [Difference(*row) for row in shown if row[1] != row[2]]


def _text(value: Optional[object]) -> str:
    return NOT_KNOWN if value is None else str(value)


def settings(params: Mapping[str, str]) -> Dict[str, str]:
    """Return the settings of a run, without its forecast."""
    return {key: value for key, value in params.items() if not is_forecast(key)}


# Tags of the record or the outcome, not of the environment
BOOKKEEPING = ("mxscale.", "mlflow.", "signature", "claims", "scaling.baseline", "data.digest", "pretrained.",
               "params_sha256", "warning", "resumed.", "ranks")  # fmt: skip


# Facts of environment.json to compare; free disk space, for example, is not compared
FACTS = ("python", "variables.", "machine.host", "machine.memory_gb", "machine.memory_limit_gb", "machine.system",
         "machine.driver", "machine.limits", "machine.infiniband", "mxnet.cuda", "mxnet.cudnn", "mxnet.nccl",
         "mxnet.blas")  # fmt: skip


def environment(tags: Dict[str, str], facts: Dict[str, object]) -> Dict[str, object]:
    """Return the environment of a run: its tags, the versions of its packages, and facts of environment.json."""
    found: Dict[str, object] = {key: value for key, value in facts.items() if key.startswith(FACTS)}
    found.update({key: value for key, value in tags.items() if not key.startswith(BOOKKEEPING)})
    found.pop("versions", None)
    found.update(versions(tags))
    return found


def outcome(tags: Dict[str, str]) -> Dict[str, str]:
    """Return the digests of data, initial weights and final weights."""
    return {
        key: value for key, value in tags.items() if key.startswith(("data.digest", "pretrained.", "params_sha256"))
    }


def metrics(a: Dict[str, float], b: Dict[str, float]) -> List[Difference]:
    """Return the metrics of the runs in RUN_METRICS, equal or not."""
    keys = sorted(key for key in {*a, *b} if key in RUN_METRICS)
    return [
        Difference(key, *(NOT_KNOWN if key not in side else f"{side[key]:,.6g}" for side in (a, b))) for key in keys
    ]


RUN_METRICS = {
    *("best/val_top1", "val/top1", "val/loss", "test/top1", "test/loss", "train/loss", "train/top1"),
    *("throughput/median", "scaling/efficiency", "time/wall_s", "time/data_wait_median", "time/compute_median"),
    *("time/exchange_median", "time/to_target_s", "cost/total_usd", "cost/total_eur", "cost/usd_to_target"),
    "cost/usd_per_point",
}
CURVES = ("train/loss", "train/top1", "val/loss", "val/top1", "lr", "throughput/images_per_s", "time/data_wait")
