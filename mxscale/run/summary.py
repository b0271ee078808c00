"""A run in figures, from its metrics file: summary.json and the table at the end."""

import statistics
from typing import Optional

from mxscale.run import costs
from mxscale.run.rundir import RunDir


def summarise(run: RunDir, attempt: int) -> dict:
    """{"metrics": the figures of the whole run, ...}.  What is not known is not there."""
    history = run.history()
    metrics = {}
    best = run.read("best.json")
    if best:
        metrics["best/val_top1"] = best["val/top1"]
        metrics["best/step"] = best["step"]
    for name in ("test/top1", "test/loss"):
        if run.last(name) is not None:
            metrics[name] = run.last(name)
    for name, label in (("throughput/images_per_s", "throughput/median"), ("time/data_wait", "time/data_wait_median")):
        values = [line["metrics"][name] for line in history if name in line["metrics"]]
        if values:
            metrics[label] = statistics.median(values)
    ended = max((line["time_ms"] for line in history), default=None)
    if ended is not None:
        metrics["time/wall_s"] = sum(costs.attempt_seconds(run, ended, attempt))
    metrics.update({f"cost/total_{currency}": value for currency, value in costs.total(run, attempt).items()})
    metrics.update(_to_target(run, history))
    usd = metrics.get("cost/total_usd")
    if usd is not None and metrics.get("best/val_top1"):
        metrics["cost/usd_per_point"] = usd / metrics["best/val_top1"]
    return {"metrics": metrics, "attempt": attempt}


def _to_target(run: RunDir, history) -> dict:
    """Seconds and USD until val/top1 first reached config.target_top1."""
    target = run.config().target_top1
    reached = next((line for line in history if target and line["metrics"].get("val/top1", -1) >= target), None)
    if reached is None:
        return {}
    figures = {"time/to_target_s": sum(costs.attempt_seconds(run, reached["time_ms"], reached["attempt"]))}
    usd = costs.total(run, reached["attempt"], reached["time_ms"]).get("usd")
    return figures if usd is None else {**figures, "cost/usd_to_target": usd}


def table(run: RunDir, view: str) -> str:
    """What the terminal shows at the end.  view: how to see the record."""
    figures, price = (run.read("summary.json") or {"metrics": {}})["metrics"], run.read("price.json") or {}
    plan = run.read("plan.json")
    rows = [
        ("best val top-1", _percent(figures.get("best/val_top1"), f" at step {figures.get('best/step')}")),
        ("test top-1", _percent(figures.get("test/top1"))),
        ("throughput", _number(figures.get("throughput/median"), "{:,.0f} images/s (median)")),
        ("waiting for data", _number(figures.get("time/data_wait_median"), "{:.1%} of the time (median)")),
        ("wall time", _number(figures.get("time/wall_s"), "{:.1f} s")),
        ("cost", _cost(figures, price)),
        ("skipped images", str(plan["skipped"]) if plan and plan.get("skipped") else None),
        ("run directory", str(run)),
        ("to see it", view),
    ]
    shown = [(name, value) for name, value in rows if value is not None]
    width = max(len(name) for name, _ in shown)
    return "\n".join(f"  {name:<{width}}  {value}" for name, value in shown)


def _percent(value: Optional[float], more: str = "") -> Optional[str]:
    return None if value is None else f"{value:.2f} %{more}"


def _number(value: Optional[float], form: str) -> Optional[str]:
    return None if value is None else form.format(value)


def _cost(figures: dict, price: dict) -> str:
    known = [f"{figures[f'cost/total_{c}']:.4f} {c.upper()}" for c in ("usd", "eur") if f"cost/total_{c}" in figures]
    return " = ".join(known) if known else f"unknown: {price.get('why', 'no price')}"
