"""A run in figures, from its metrics file: summary.json and the table at the end."""

import statistics
from typing import Optional

from mxscale.run import costs
from mxscale.run.rundir import FINISHED, RunDir, runs_of


def summarise(run: RunDir, attempt: int) -> dict:
    """{"metrics": the figures of the whole run, ...}.  What is not known is not there."""
    history = run.history()
    attempts = run.read("status.json")["attempts"]
    alike = {each["attempt"] for each in attempts if each.get("ranks") == attempts[-1].get("ranks")}
    metrics = {}
    best = run.read("best.json")
    if best:
        metrics["best/val_top1"] = best["val/top1"]
        metrics["best/step"] = best["step"]
    for name in ("test/top1", "test/loss"):
        if run.last(name) is not None:
            metrics[name] = run.last(name)
    for name, label in (("throughput/images_per_s", "throughput/median"), ("time/data_wait", "time/data_wait_median")):
        values = [line["metrics"][name] for line in history if name in line["metrics"] and line["attempt"] in alike]
        if values:
            metrics[label] = statistics.median(values)
    ended = attempts[-1]["ended_ms"]
    metrics["time/wall_s"] = sum(costs.Attempts(run).seconds(ended, attempt))
    metrics.update({f"cost/total_{currency}": value for currency, value in costs.total(run, attempt, ended).items()})
    metrics.update(_to_target(run, history))
    usd = metrics.get("cost/total_usd")
    if usd is not None and metrics.get("best/val_top1"):
        metrics["cost/usd_per_point"] = usd / metrics["best/val_top1"]
    plan = run.read("plan.json")
    if plan.get("skipped"):
        metrics["data/skipped"] = plan["skipped"]
    baseline = one_rank_baseline(run, plan)
    if baseline and "throughput/median" in metrics:
        rate, ranks = baseline.read("summary.json")["metrics"]["throughput/median"], plan["sizes"]["ranks"]
        metrics["scaling/efficiency"] = metrics["throughput/median"] / (ranks * rate)
    return {"metrics": metrics, "attempt": attempt, "baseline": baseline and str(baseline)}


def one_rank_baseline(run: RunDir, plan: dict) -> Optional[RunDir]:
    """The newest finished 1-rank run that is this one but for its ranks: what efficiency is measured against.

    Its rank had as many OMP threads as each of these: else it had another share of the machine.
    """
    if plan["sizes"]["ranks"] == 1:
        return None
    if plan["sizes"]["shards"] != plan["sizes"]["ranks"]:
        return None  # several shards a rank are slower than one
    machine = _machine(run)
    for other in runs_of(run.path.parents[1], run.path.parent.name):
        known = other.read("plan.json") or {}
        same = all(known.get(key) == plan[key] for key in ("weak_signature", "threads", "device"))
        rate = ((other.read("summary.json") or {}).get("metrics") or {}).get("throughput/median")
        finished = (other.read("status.json") or {}).get("state") == FINISHED
        if same and rate and finished and known["sizes"]["shards"] == 1 and _machine(other) == machine:
            return other
    return None


def _machine(run: RunDir) -> list:
    tags = (run.read("environment.json") or {}).get("tags", {})
    return [tags.get(name) for name in ("machine", "build", "versions")]


def _to_target(run: RunDir, history) -> dict:
    """Seconds and USD until val/top1 first reached config.target_top1."""
    target = run.config().target_top1
    reached = next((line for line in history if target and line["metrics"].get("val/top1", -1) >= target), None)
    if reached is None:
        return {}
    figures = {"time/to_target_s": sum(costs.Attempts(run).seconds(reached["time_ms"], reached["attempt"]))}
    usd = costs.total(run, reached["attempt"], reached["time_ms"]).get("usd")
    return figures if usd is None else {**figures, "cost/usd_to_target": usd}


def table(run: RunDir, view: str) -> str:
    """What the terminal shows at the end.  view: how to see the record."""
    summary, price = run.read("summary.json") or {"metrics": {}}, run.read("price.json") or {}
    figures = summary["metrics"]
    plan = run.read("plan.json")
    rows = [
        ("best val top-1", _percent(figures.get("best/val_top1"), f" at step {figures.get('best/step')}")),
        ("test top-1", _percent(figures.get("test/top1"))),
        ("throughput", _number(figures.get("throughput/median"), "{:,.0f} images/s (median)")),
        ("scaling efficiency", _efficiency(summary)),
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


def _efficiency(summary: dict) -> Optional[str]:
    if "scaling/efficiency" not in summary["metrics"]:
        return None
    return f"{summary['metrics']['scaling/efficiency']:.1%} of the 1-rank run {summary['baseline'].rpartition('/')[2]}"


def _percent(value: Optional[float], more: str = "") -> Optional[str]:
    return None if value is None else f"{value:.2f} %{more}"


def _number(value: Optional[float], form: str) -> Optional[str]:
    return None if value is None else form.format(value)


def _cost(figures: dict, price: dict) -> str:
    known = [f"{figures[f'cost/total_{c}']:.4f} {c.upper()}" for c in ("usd", "eur") if f"cost/total_{c}" in figures]
    return " = ".join(known) if known else f"unknown: {price.get('why', 'no price')}"
