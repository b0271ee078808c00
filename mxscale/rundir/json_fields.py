"""The fields that are relied on in the JSON files of a run directory that have no record type."""

from typing import Any, Dict, Optional, Tuple

# file -> {field: type}, or the type of all fields; Optional: it may be missing. Other fields are not relied on.
FIELDS: Dict[str, Any] = {
    "best.json": {"step": int, "val/top1": float, "checkpoint": str},
    "state.json": {
        "step": int,
        "shards": int,
        "global_batch": int,
        "best": Optional[Dict[str, Any]],
        "loss_scale": Dict[str, Any],
        "params_sha256": str,
        "unsaved": Optional[str],
        "validation_pending": Optional[bool],
        "owes_validation": Optional[bool],  # validation_pending in checkpoints written before 2026-11-26
        "under_way": Optional[bool],
    },
    "environment.json": {
        "tags": Optional[Dict[str, Any]],
        "git": Optional[Dict[str, Any]],
        "machine": Optional[Dict[str, Any]],
        "mxnet": {"features": Optional[Tuple[str, ...]], "linked": Optional[Dict[str, Any]]},
        "variables": Optional[Dict[str, Any]],
        "code": Optional[str],
    },
    "warnings.json": Dict[str, str],
    "params.json": Dict[str, str],
    "refused.json": {"error": Optional[str]},
    "rerun.json": {
        "of": str,
        "parent": Optional[str],
        "seeds": Tuple[Dict[str, float], ...],
        "asked": Dict[str, Tuple[Any, ...]],
        "differs": Tuple[str, ...],
        "verdict": Optional[str],
        "why": Optional[str],
    },
    "test-allreduce.json": {"nodes": int, "fit": {"alpha_s": Optional[float], "bytes_per_s": Optional[float]}},
    "cell.json": {"sweep": str, "number": int, "name": str},
    "sweep.json": {"attempt": int, "process": Tuple[Any, ...], "swept": Optional[Dict[str, Any]]},
    "tracking.json": {
        "id": str,
        "dir": Optional[str],
        "uri": Optional[str],
        "experiment": Optional[str],
        "earlier": Optional[Tuple[Dict[str, Any], ...]],
    },
}
