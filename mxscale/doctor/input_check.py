"""Check of the input: the images/s that the cores decode and augment, against those that the GPUs train.

As in doctor.py, a check returns (state, cause[, fix]), or None if it does not apply.
"""

from collections import Counter
from typing import Optional

from mxscale.doctor.check_result import OK, WARN, PlannedRun
from mxscale.doctor.gpu_checks import on_cpu
from mxscale.perfmodel import hardware

REFERENCE = "V100"  # for a machine without GPUs whose rate is published
QUANTITIES = {"resnet50_fp16": "float16", "resnet50_fp32": "float32"}  # of hardware.csv, the faster one first


def feeding(facts: dict, run: PlannedRun):
    found, cores = facts.get("input"), facts.get("machine", {}).get("cores")
    if found is None:  # measured by the command alone, not for every run
        return None
    if "error" in found:
        fix = "make setup" if "No module named" in found["error"] else ""
        return WARN, f"not measured: {found['error']}", fix
    rate = found["images_per_s"]
    text = f"{_rounded(rate)} images/s from {cores} {'core' if cores == 1 else 'cores'}"
    reference = f"ResNet-50 takes {_rounded(published(REFERENCE)[0])} on a {REFERENCE} ({published(REFERENCE)[1]})"
    if on_cpu(facts, run):
        return OK, f"{text}; {reference}"
    driver = facts["mxnet"]["driver"].get("gpus", [])
    gpus = Counter(gpu["name"] for gpu in driver[: facts["mxnet"]["gpus"]])
    unknown = [name for name in gpus if published(name) is None]
    if unknown or not gpus:
        return OK, f"{text}; no rate of {unknown[0] if unknown else 'this GPU'} is published; {reference}"
    total = sum(count * published(name)[0] for name, count in gpus.items())
    on = " + ".join(f"{count} x {name} ({published(name)[1]})" for name, count in gpus.items())
    wanted = f"ResNet-50 takes {_rounded(total)} on {on}"
    if rate < total:
        fix = "data.pack_format=bmp needs no decoder; mxscale test-io measures a data set"
        return WARN, f"{text}, but {wanted}", fix
    return OK, f"{text}; {wanted}"


def published(gpu: str) -> Optional[tuple]:
    """Return (images/s of training ResNet-50, precision) as published of one GPU; None if unknown."""
    device = hardware.device(gpu) or {}
    return next(((device[name], precision) for name, precision in QUANTITIES.items() if name in device), None)


def _rounded(rate: float) -> str:
    """Return a number with two significant digits, as exact as the measurement is."""
    return f"{float(f'{rate:.2g}'):,.0f}"
