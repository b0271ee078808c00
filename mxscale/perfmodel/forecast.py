"""The forecast of a run's rate, hours and cost.

In order of preference: earlier runs that differ only in length, seed, learning rate and price, on as many devices;
such runs on fewer devices, with the modelled exchange; the tables, for a known instance with GPUs. On a CPU only
earlier runs count. The result is the run's forecast.json, `plan/*` in MLflow and `plan/error` at the end. An unknown
rate is reported as unknown.
"""

import math
import statistics
from dataclasses import replace
from typing import Dict, List, Optional, Tuple

from mxscale.config.backends import MODELLED
from mxscale.config.schema import Config
from mxscale.config.sizes import Sizes
from mxscale.cost import prices, run_cost
from mxscale.environment.placement import Placement
from mxscale.perfmodel import calibration, layers, machines, rates, scenarios
from mxscale.perfmodel.published import absolute
from mxscale.perfmodel.step_time import Link
from mxscale.records import earlier_runs
from mxscale.rundir.directory import FORECAST, RunDir
from mxscale.rundir.plan import Plan
from mxscale.rundir.price import Price
from mxscale.util.errors import ConfigError


def record(run: RunDir, config: Config) -> str:
    """Write forecast.json and return a line for the terminal. plan.json must have the signature."""
    forecast = predict(run, config, run.plan())
    run.write(FORECAST, forecast)
    return f"plan      {describe(forecast)}"


def predict(run: RunDir, config: Config, plan: Plan) -> Dict:
    """Return the forecast of a run.

    Returns:
        {"known": True, "plan/images_per_s", "plan/hours", "plan/usd", "plan/eur", "source"}, or
        {"known": False, "why"}. The hours are those of all steps and, from an earlier run if one exists, of start, end
        and validations. A currency without a price is omitted.
    """
    earlier = earlier_runs.comparable(run, plan, "speed_signature")
    try:
        rate, source = _from_runs(config, plan, earlier)
        if rate is None and plan.device == "gpu":
            rate, source = _from_tables(config, plan)
    except ConfigError as error:  # a run of another version, an unknown network or instance
        rate, source = None, str(error)
    if rate is None:
        return {"known": False, "why": source}
    sizes = plan.sizes
    hours = (sizes.total_steps * sizes.global_batch / rate + _overhead_s(earlier, config, sizes)) / 3600
    figures = {"plan/images_per_s": rate, "plan/hours": hours}
    cost = prices.cost(run.price() or Price(known=False), 3600 * hours)
    figures.update({f"plan/{currency}": value for currency, value in (cost or {}).items()})
    return {"known": True, **figures, "source": source}


def describe(forecast: Dict) -> str:
    """Return a forecast in one line."""
    if not forecast["known"]:
        return f"unknown: {forecast['why']}"
    hours = forecast["plan/hours"]
    time = f"{hours:.2f} h" if hours >= 0.1 else f"{3600 * hours:.0f} s"
    money = [f"{forecast[f'plan/{name}']:.4g} {name.upper()}" for name in ("usd", "eur") if f"plan/{name}" in forecast]
    cost = f", {' = '.join(money)}" if money else ""
    return f"{forecast['plan/images_per_s']:,.0f} images/s, {time}{cost}; {forecast['source']}"


def _from_runs(config: Config, plan: Plan, earlier: List[RunDir]) -> Tuple[Optional[float], str]:
    """Return the images/s and their source, or None and the reason."""
    devices = plan.sizes.ranks
    same = earlier_runs.same_layout(earlier, config, plan)
    if same:
        several = f"the median of {len(same)} earlier runs" if len(same) > 1 else "an earlier run"
        return statistics.median(map(_rate, same)), f"{several} of this configuration"
    if plan.sizes.shards != devices:
        return None, "several data shards per rank are not modelled"
    earlier = [run for run in earlier if run.plan().sizes.shards == _devices(run)]
    fewer = [run for run in earlier if _devices(run) < devices]
    if not fewer:
        return None, "no earlier run of this configuration on this machine, on as many devices or fewer"
    base = min(fewer, key=_devices)
    known = f"{base.path.name} on {_devices(base)} device{'s' if _devices(base) > 1 else ''}"
    link, others = _own_link(config, plan, base, earlier)
    if link is None:
        most = _rate(base) * devices / _devices(base)
        return most, f"at most: {known}, the exchange is unknown and not counted"
    now = replace(calibration.of_run(str(base.path)), devices=devices, comm=config.comm)
    network = layers.network(config.model.name, config.data.image_size, plan.classes)
    rate = float(calibration.rate_of(now, _rate(base), network, {"intra": link}))
    return rate, f"{known}, the exchange fitted to {others} more"


# exchange of a run on one machine -> link that carries it
INSIDE = {exchange: link for link, (exchange, between) in calibration.CARRIES.items() if not between}


def _own_link(config: Config, plan: Plan, base: RunDir, earlier: List[RunDir]) -> Tuple[Optional[Link], int]:
    """Return the link inside this machine, fitted to earlier runs with the same exchange, and their number."""
    which = INSIDE.get(config.comm.entry.exchange)
    if _devices(base) > 1 or len(plan.hosts) > 1 or which is None or not layers.known(config.model.name):
        return None, 0
    others = [run for run in earlier if _devices(run) > 1 and run.config().comm == config.comm]
    return calibration.fit([calibration.of_run(str(run.path)) for run in [base, *others]], which), len(others)


def _rate(run: RunDir) -> float:
    return run.figures["throughput/median"]


def _devices(run: RunDir) -> int:
    return run.plan().sizes.ranks


def _overhead_s(earlier: List[RunDir], config: Config, sizes: Sizes) -> float:
    """Return the seconds outside the steps by the newest complete run: its start and end, and one of its validations
    for each of this run's; 0 if there is no complete run.
    """
    for run in earlier:
        status, of_run = run.status(), run.plan().sizes
        if len(status.attempts) == 1 and status.step:
            outside = run.figures.get("time/wall_s", 0.0) - status.step * of_run.global_batch / _rate(run)
            validations = _validations_s(run)
            expected = math.ceil(sizes.total_steps / (config.validate_every * sizes.steps_per_epoch))
            mean = statistics.mean(validations) if validations else 0.0
            return max(0.0, outside - sum(validations)) + expected * mean
    return 0.0


def _validations_s(run: RunDir) -> List[float]:
    """Return the seconds of each validation: from its step's metrics, which are recorded before it, to its own."""
    trained, seconds = {}, []
    for line in run.history():
        if "train/loss" in line["metrics"]:
            trained[line["step"]] = line["time_ms"]
        elif "val/top1" in line["metrics"] and line["step"] in trained:
            seconds.append((line["time_ms"] - trained[line["step"]]) / 1000)
    return seconds


def _from_tables(config: Config, plan: Plan) -> Tuple[Optional[float], str]:
    """Return the images/s of an instance in the tables and their source, or None and the reason."""
    if config.machine.instance is None:
        return None, "no earlier run of this configuration on this machine, and no machine.instance"
    sizes, (nodes, _) = plan.sizes, calibration.nodes_of(plan)
    if sizes.shards != sizes.ranks:
        return None, "several data shards per rank are not modelled"
    if Placement.of(plan).unequal:
        return None, "machines with unequal numbers of ranks are not modelled"
    if scenarios.exchange_of(config) not in MODELLED:
        return None, f"comm={config.comm.backend} has no performance model"
    network = layers.network(config.model.name, config.data.image_size, plan.classes)
    node = machines.node(config.machine, run_cost.pricing(config), machines.Given(sizes.ranks // nodes))
    if nodes > 1 and node.machine.nic is None:
        return None, f"the link between nodes of {node.machine.name} is unknown"
    rate = rates.of_device(network, node.gpu, sizes.per_device_batch, config.precision)
    grid = scenarios.Grid(
        machine=[node.machine],
        nodes=[nodes],
        comm=[scenarios.exchange_of(config)],
        servers=[str(calibration.server_nodes_of(plan, config.comm))],
        batch=[sizes.per_device_batch],
        precision=[config.precision],
        compression=[config.comm.compression],
        double_buffering=[config.comm.double_buffering],
    )
    rate_of = {(node.machine.name, sizes.per_device_batch, config.precision): rate.images_per_s}
    task = replace(scenarios.task_of(config, network, sizes.train_images, rate_of), server=node.machine)
    plans, left_out = scenarios.evaluate(grid, task)
    if not len(plans["images_per_s"]):
        return None, next((why for why, count in left_out.items() if count), "no plan is valid")
    error = absolute.describe(rate.kind)
    return float(plans["images_per_s"][0]), f"one device: {rate.source}" + (f"; {error}" if error else "")
