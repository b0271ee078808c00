"""Forecast of a run's rate, hours and cost before its ranks start.

Sources, in this order: comparable runs (records/earlier_runs.py) on as many devices; comparable runs on fewer devices
with the model of the gradient exchange; the tables of GPUs, if the machine is an instance that they list.  For a CPU
only earlier runs count.
The result is the run's forecast.json, `plan/*` in MLflow and `plan/error` at the end.  Unknown stays unknown.
"""

import math
import statistics
from dataclasses import replace
from typing import Dict, List, Optional, Tuple

from mxscale.config.backends import MODELLED
from mxscale.config.schema import Config
from mxscale.cost import prices, run_cost
from mxscale.perfmodel import calibration, layers, machines, rates, scenarios
from mxscale.perfmodel.step_time import Link
from mxscale.planner import planning
from mxscale.records import earlier_runs
from mxscale.rundir.directory import FORECAST, RunDir
from mxscale.rundir.plan import Plan
from mxscale.util.errors import ConfigError


def record(run: RunDir, config: Config) -> str:
    """Write forecast.json and return the line to print.  plan.json needs its signatures (setup.record_environment)."""
    forecast = predict(run, config, run.plan())
    run.write(FORECAST, forecast)
    return f"plan      {described(forecast)}"


def predict(run: RunDir, config: Config, plan: Plan) -> Dict:
    """Return the forecast of a prepared run.

    Returns:
        {"known": True, "plan/images_per_s", "plan/hours", "plan/usd", "plan/eur", "source"}, or
        {"known": False, "why"}.  Hours are those of all steps and of what an earlier run needed beside its steps
        (start, validation), if there is one.  A currency without a price is omitted.
    """
    earlier = earlier_runs.comparable(run, plan, "speed_signature")
    try:
        rate, source = _from_runs(config, plan, earlier)
        if rate is None and plan.device == "gpu":
            rate, source = _from_tables(config, plan)
    except ConfigError as error:  # a run of another version, a network or an instance that no table has
        rate, source = None, str(error)
    if rate is None:
        return {"known": False, "why": source}
    sizes = plan.sizes
    hours = (sizes.total_steps * sizes.global_batch / rate + _beside(earlier)) / 3600
    figures = {"plan/images_per_s": rate, "plan/hours": hours}
    cost = prices.cost(run.read("price.json") or {"known": False}, [3600 * hours])
    figures.update({f"plan/{currency}": value for currency, value in (cost or {}).items()})
    return {"known": True, **figures, "source": source}


def described(forecast: Dict) -> str:
    """Return a forecast as one line."""
    if not forecast["known"]:
        return f"unknown: {forecast['why']}"
    hours = forecast["plan/hours"]
    time = f"{hours:.2f} h" if hours >= 0.1 else f"{3600 * hours:.0f} s"
    money = [f"{forecast[f'plan/{name}']:.4g} {name.upper()}" for name in ("usd", "eur") if f"plan/{name}" in forecast]
    cost = f", {' = '.join(money)}" if money else ""
    return f"{forecast['plan/images_per_s']:,.0f} images/s, {time}{cost}; {forecast['source']}"


# ---------------------------------------------------------------- earlier runs


def _from_runs(config: Config, plan: Plan, earlier: List[RunDir]) -> Tuple[Optional[float], str]:
    """Return (images/s, source), or (None, why not)."""
    devices = plan.sizes.ranks
    same = earlier_runs.same_layout(earlier, config, plan.sizes)
    if same:
        several = f"the median of {len(same)} earlier runs" if len(same) > 1 else "an earlier run"
        return statistics.median(map(_rate, same)), f"{several} of this configuration"
    if plan.sizes.shards != devices:
        return None, "several data shards per rank: their exchange is not modelled"
    earlier = [run for run in earlier if earlier_runs.sizes_of(run).shards == _devices(run)]
    fewer = [run for run in earlier if _devices(run) < devices]
    if not fewer:
        return None, "no earlier run of this configuration on this machine, on as many devices or fewer"
    base = min(fewer, key=_devices)
    known = f"{base.path.name} on {_devices(base)} device{'s' if _devices(base) > 1 else ''}"
    link, others = _own_link(config, plan, base, earlier)
    if link is None:
        linear = _rate(base) * devices / _devices(base)
        return linear, f"at most: {known}, without the unknown time of the exchange"
    now = replace(calibration.of_run(str(base.path)), devices=devices, comm=config.comm)
    network = layers.network(config.model.name, config.data.image_size, plan.classes)
    rate = float(calibration.rate_of(now, _rate(base), network, {"intra": link}))
    return rate, f"{known}, with the exchange fitted to {others} more"


# The exchange of a run on one machine -> the link that carries it
INSIDE = {exchange: link for link, (exchange, between) in calibration.CARRIES.items() if not between}


def _own_link(config: Config, plan: Plan, base: RunDir, earlier: List[RunDir]) -> Tuple[Optional[Link], int]:
    """Return the link inside this machine that fits earlier runs with the same exchange, and their number."""
    which = INSIDE.get(config.comm.entry.exchange)
    if _devices(base) > 1 or len(plan.hosts) > 1 or which is None or not layers.known(config.model.name):
        return None, 0
    others = [run for run in earlier if _devices(run) > 1 and run.config().comm == config.comm]
    return calibration.fit([calibration.of_run(str(run.path)) for run in [base, *others]], which), len(others)


def _rate(run: RunDir) -> float:
    return run.figures["throughput/median"]


def _devices(run: RunDir) -> int:
    return earlier_runs.sizes_of(run).ranks


def _beside(earlier: List[RunDir]) -> float:
    """Return the seconds that the newest of these needed beside its steps; 0 if there is none."""
    for run in earlier:
        status, sizes = run.status(), earlier_runs.sizes_of(run)
        if len(status.attempts) == 1 and status.step:
            wall = run.figures.get("time/wall_s", 0.0)
            return max(0.0, wall - status.step * sizes.global_batch / _rate(run))
    return 0.0


# ---------------------------------------------------------------- tables


def _from_tables(config: Config, plan: Plan) -> Tuple[Optional[float], str]:
    """Return (images/s, source) of the GPUs of an instance that the tables list, or (None, why not)."""
    if config.machine.instance is None:
        return None, "no earlier run of this configuration on this machine, and machine.instance does not name it"
    sizes, (nodes, _) = plan.sizes, calibration.nodes_of(plan)
    if planning.exchange_of(config) not in MODELLED:
        return None, f"comm={config.comm.backend} has no step that all ranks take together: it is not modelled"
    network = layers.network(config.model.name, config.data.image_size, plan.classes)
    node = machines.node(config.machine, run_cost.pricing(config), machines.Given(math.ceil(sizes.ranks / nodes)))
    if nodes > 1 and node.machine.nic is None:
        return None, f"the link between nodes of {node.machine.name} is not known"
    rate = rates.of_device(network, node.gpu, sizes.per_device_batch, config.precision)
    grid = scenarios.Grid(
        machine=[node.machine],
        nodes=[nodes],
        comm=[planning.exchange_of(config)],
        servers=["0"],  # they share the ranks' hosts
        batch=[sizes.per_device_batch],
        precision=[config.precision],
        compression=[config.comm.compression],
        double_buffering=[config.comm.double_buffering],
    )
    rate_of = {(node.machine.name, sizes.per_device_batch, config.precision): rate.images_per_s}
    plans, _ = scenarios.evaluate(grid, planning.task_of(config, network, sizes.train_images, rate_of))
    return float(plans["images_per_s"][0]), f"one device: {rate.source}"
