"""The figures of a whole run, from its metrics file: summary.json and the final table."""

import statistics
import time
from typing import Dict, Mapping, Optional

from mxscale.cost import prices, run_cost
from mxscale.environment import system_metrics
from mxscale.environment.other_programs import remark
from mxscale.records import earlier_runs, energy
from mxscale.rundir.directory import RERUN, SYSTEM, RunDir
from mxscale.rundir.price import Price
from mxscale.rundir.status import FINISHED, Summary
from mxscale.util import text_table

NEXT = "\n"  # within a row of the table


def summarise(run: RunDir, attempt: int) -> Summary:
    """Return the figures of the whole run; unknown ones are omitted."""
    history = run.history()
    attempts = run.attempts
    # The last attempt may have started no rank
    ranks = next((one.ranks for one in reversed(attempts) if one.ranks), None)
    comparable = {one.attempt for one in attempts if one.ranks == ranks}
    metrics = {}
    best = run.read("best.json")
    if best:
        metrics["best/val_top1"] = best["val/top1"]
        metrics["best/step"] = best["step"]
    last = {name: value for line in history for name, value in line["metrics"].items()}
    metrics.update({name: last[name] for name in ("test/top1", "test/loss") if name in last})
    medians = {"throughput/images_per_s": "throughput/median", "time/data_wait": "time/data_wait_median"}
    measured = [line["metrics"] for line in history if line["attempt"] in comparable]
    for name, label in medians.items():
        values = [line[name] for line in measured if name in line]
        if values:
            metrics[label] = statistics.median(values)
    ended = attempts[-1].ended_ms
    metrics["time/wall_s"] = run_cost.wall_s(run, attempt, ended)
    metrics.update({f"cost/total_{currency}": value for currency, value in run_cost.total(run, attempt, ended).items()})
    metrics.update(_to_target(run, history))
    of_energy, energy_source = energy.figures(run, attempt, ended)
    metrics.update(of_energy)
    plan = run.plan()
    if plan.skipped:
        metrics["data/skipped"] = plan.skipped
    efficiency, baseline = earlier_runs.efficiency(run, plan, metrics.get("throughput/median"))
    metrics.update(efficiency)
    return Summary(metrics, attempt, baseline and str(baseline), energy_source)


def _to_target(run: RunDir, history) -> dict:
    """Return seconds and cost until val/top1 first reached config.target_top1, with set-up and earlier attempts."""
    target = run.config().target_top1
    if target is None:
        return {}
    reached = next((line for line in history if line["metrics"].get("val/top1", -1) >= target), None)
    if reached is None:
        return {}
    figures = {"time/to_target_s": run_cost.wall_s(run, reached["attempt"], reached["time_ms"])}
    cost = run_cost.total(run, reached["attempt"], reached["time_ms"])
    return {**figures, **{f"cost/{currency}_to_target": value for currency, value in cost.items()}}


def in_short(run: RunDir) -> str:
    """Return the main figures of a run that has ended in one line."""
    figures = (run.summary() or Summary()).metrics
    parts = [
        shown(figures, "best/val_top1", "{:.2f} % val top-1"),
        shown(figures, "test/top1", "{:.2f} % test top-1"),
        shown(figures, "throughput/median", "{:,.0f} images/s"),
        shown(figures, earlier_runs.EFFICIENCY, "{:.1%} scaling efficiency"),
        shown(figures, "time/wall_s", "{:.1f} s"),
        cost(figures, "cost/total_{}") or "cost unknown",
    ]
    return ", ".join(filter(None, parts))


def table(run: RunDir, view: Optional[str] = None) -> str:
    """Return the table that is printed at the end of a run.

    Args:
        view: How to view the record in MLflow.
    """
    summary, price = run.summary() or Summary(), run.price() or Price(known=False, why="no price")
    figures, skipped = summary.metrics, run.plan().skipped
    last_ms = max((one.ended_ms or 0 for one in run.attempts), default=0)  # 0: resumed, or its record lacks it
    ended = time.strftime(", ended %Y-%m-%d %H:%M:%S", time.localtime(last_ms / 1000)) if last_ms else ""
    rows = [
        ("ended early", _early_end(run)),
        ("best val top-1", shown(figures, "best/val_top1", "{:.2f} % at step " + str(figures.get("best/step")))),
        ("test top-1", shown(figures, "test/top1", "{:.2f} %")),
        ("throughput", shown(figures, "throughput/median", "{:,.0f} images/s (median)")),
        ("busy machine", _others(run)),
        ("scaling efficiency", earlier_runs.described(run, summary)),
        ("waiting for data", shown(figures, "time/data_wait_median", "{:.1%} of the time (median)")),
        ("wall time", shown(figures, "time/wall_s", "{:.1f} s" + ended)),
        ("billed", prices.billed(price, figures.get("time/wall_s", 0.0), _amounts(figures, "cost/total_{}"))),
        ("cost", cost(figures, "cost/total_{}") or f"unknown: {price.why or 'no price'}"),
        ("cost to target", _to(figures)),
        ("energy", shown(figures, "energy/kwh", f"{{:.4g}} kWh ({summary.energy_source})")),
        ("CO2", shown(figures, "co2/kg", "{:.4g} kg")),
        ("skipped images", str(skipped) if skipped else None),
        ("run directory", str(run)),
        ("view", view),
        ("verdict", _verdict(run)),
    ]
    lines = [(name, value.split(NEXT)) for name, value in rows if value is not None]
    cells = [[name * (number == 0), text] for name, texts in lines for number, text in enumerate(texts)]
    return "\n".join(text_table.columns(cells, indent="  "))


def _early_end(run: RunDir) -> Optional[str]:
    """Return why a finished run ended before its last step, and at which."""
    status = run.status()
    if status.state != FINISHED or not status.reason:
        return None
    return f"{status.reason}, at step {status.step} of {run.plan().sizes.total_steps}"


def _others(run: RunDir) -> Optional[str]:
    """Return what other programs used during the last attempt, if that was much."""
    name = f"system/{system_metrics.OTHERS}"
    lines = [line for line, _ in run.lines_from(0, SYSTEM) if line["attempt"] == run.attempts[-1].attempt]
    shares = [line["metrics"][name] for line in lines if name in line["metrics"]]
    return remark(statistics.mean(shares or [0.0]), "used") or None


def _verdict(run: RunDir) -> Optional[str]:
    rerun = run.read(RERUN) or {}
    return f"{rerun['verdict']}: {rerun['why'].replace('; ', NEXT)}" if rerun.get("verdict") else None


def shown(figures: dict, name: str, form: str) -> Optional[str]:
    """Return a metric as text; None if it was not recorded."""
    return form.format(figures[name]) if figures.get(name) is not None else None


def cost(figures: dict, name: str) -> Optional[str]:
    """Return the cost in each known currency. `name`: the metric, with {} for the currency."""
    return money(_amounts(figures, name))


def _amounts(figures: dict, name: str) -> Dict[str, Optional[float]]:
    return {currency: figures.get(name.format(currency)) for currency in ("usd", "eur")}


def money(amounts: Mapping[str, Optional[float]]) -> Optional[str]:
    """Return an amount by currency as text, such as `1.6000 USD = 1.4111 EUR`; None if it is known in none."""
    return " = ".join(prices.in_currencies(amounts)) or None


def _to(figures: dict) -> Optional[str]:
    """Return cost and time to the target."""
    if "time/to_target_s" not in figures:
        return None
    return f"{cost(figures, 'cost/{}_to_target') or 'unknown'} ({figures['time/to_target_s']:.1f} s)"
