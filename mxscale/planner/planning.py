"""`mxscale plan`: evaluate every plan of the requested settings and recommend one."""

import itertools
import json
import os
import textwrap
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Callable, Dict, List, Optional, Tuple

import numpy as np

from mxscale.config.backends import MODELLED, SERVERS
from mxscale.config.datasets import DATASETS
from mxscale.config.schema import Config, Machine
from mxscale.config.verbs.plan import Plan
from mxscale.cost.prices import UnknownSpotPrice
from mxscale.cost.run_cost import pricing
from mxscale.data.class_names import class_names
from mxscale.launcher.progress import echo
from mxscale.perfmodel import calibration, hardware, layers, machines, rates, scenarios
from mxscale.planner import choice, figure, table
from mxscale.rundir.price import Price
from mxscale.util.errors import ConfigError, nearest


def main(config: Config, settings: Plan, as_json: bool) -> None:
    """Print, write and draw the plans. Raises ConfigError."""
    found = solve(config, settings)
    written = write(found, settings.output or os.path.join(config.runs, "plan"), config)
    echo(json.dumps(as_object(found, written)) if as_json else as_text(found, written))


def without_data(values: dict) -> dict:
    """Return the settings with placeholders for missing data paths, which a plan does not read."""
    for name in ("root", "train", "val"):
        values["data"][name] = values["data"][name] or "unused"
    return values


def solve(config: Config, settings: Plan) -> "Result":
    """Return all plans and the recommended ones. Raises ConfigError."""
    grid, task, inputs = put_together(config, settings)
    plans, left_out = scenarios.evaluate(grid, task)
    if not len(plans["hours"]):
        raise ConfigError(f"no combination of the plan.* settings is valid: {'; '.join(left_out)}")
    bounds = choice.Bounds(settings.deadline_hours, settings.budget_usd, settings.budget_eur)
    return Result(plans, left_out, inputs, bounds, choose(plans, bounds))


@dataclass(frozen=True)
class Result:
    """All plans, and the recommended ones."""

    plans: scenarios.Plans
    left_out: Dict[str, int]  # reason -> number of invalid combinations
    inputs: Dict[str, str]  # descriptions of what the plans rest on
    bounds: choice.Bounds
    answer: Dict[str, int]  # description -> index of a plan


def put_together(config: Config, settings: Plan) -> Tuple[scenarios.Grid, scenarios.Task, Dict[str, str]]:
    """Return the grid, the settings of all plans, and descriptions of what they rest on. Raises ConfigError."""
    swept = {
        "nodes": settings.listed("nodes", config.machine.nodes),
        "comm": settings.listed("comm", scenarios.exchange_of(config)),
        "servers": settings.listed("servers", "1x"),
        "batch": settings.listed("batch", config.batch.per_device),
        "precision": settings.listed("precision", config.precision),
        "compression": settings.listed("compression", config.comm.compression),
        "double_buffering": settings.listed("double_buffering", config.comm.double_buffering),
    }
    scenarios.check_modelled(swept["comm"])
    images, classes, images_source = epoch_of(config, settings)
    network = layers.network(config.model.name, config.data.image_size, classes)
    own = calibration.read(settings.calibrate, config)
    served = SERVERS in map(MODELLED.get, swept["comm"]) and swept["servers"] != ["0"]
    price_of = _known_or_not(pricing(config))
    nodes = _nodes(config, settings, own, price_of, linked=served or max(swept["nodes"]) > 1)
    server = _server(config, settings, own, price_of) if served else None
    epochs, given = settings.epochs or config.epochs, settings.input_images_per_s
    device_rates, rate_sources, error = _rates(network, nodes, swept, settings, own)
    inputs = {
        "network": f"{network.name}: {network.gradients / 1e6:.1f} million gradients, "
        f"{network.flops / 1e9:.2f} GFLOPs per forward pass",
        "epochs": f"{epochs:g} of {images:,} images ({images_source})",
        "device": rate_sources,
        "error": error,
        "links": "; ".join([*dict.fromkeys(node.links for node in nodes), *filter(None, [own.sources])]),
        "input": f"{given:,.0f} images/s per node (given)" if given else "not modelled (plan.input_images_per_s)",
        "price": "; ".join(dict.fromkeys(node.price for node in nodes)),
        "servers": f"{server.links}; {server.price}" if server else None,
    }
    task = replace(
        scenarios.task_of(config, network, images, device_rates),
        server=server and server.machine,
        epochs=epochs,
        input_images_per_s=given,
    )
    grid = scenarios.Grid(machine=[node.machine for node in nodes], **swept)
    return grid, task, {name: text for name, text in inputs.items() if text}


def epoch_of(config: Config, settings: Plan) -> Tuple[int, Optional[int], str]:
    """Return the training images, the classes (None: as published), and their source. Raises ConfigError."""
    data = config.data
    published = DATASETS[data.kind]
    names = class_names(data)
    classes = len(names) if names else data.num_classes or published.classes
    if settings.images:
        return settings.images, classes, "given"
    if published.generated:
        return data.num_images, classes, "data.num_images"
    if data.train_per_class and classes:
        return data.train_per_class * classes, classes, f"{data.kind}: {data.train_per_class} per class"
    if not published.train_images or data.classes:
        raise ConfigError(f"plan.images is missing: the number of training images of data={data.kind} is unknown")
    validation_share = 0 if published.own_validation else data.val_share or 0
    return round(published.train_images * (1 - validation_share)), classes, data.kind


def _known_or_not(price_of: Callable) -> Callable:
    """Return `price_of` with an unknown price in place of a refusal if no spot price is known."""

    def price(machine) -> Price:
        try:
            return price_of(machine)
        except UnknownSpotPrice as error:
            return Price(known=False, why=str(error))

    return price


def _nodes(
    config: Config, settings: Plan, own: calibration.Calibration, price_of: Callable, linked: bool
) -> List[machines.Node]:
    """Return the requested machines; linked: whether plans need a link between nodes. Raises ConfigError."""
    machine = config.machine
    names = settings.listed("instance", None) if settings.instance else [machine.instance]
    if len(names) > 1 and (machine.usd_per_hour is not None or machine.eur_per_hour is not None):
        raise ConfigError("plan.instance lists several, and machine.usd_per_hour is the price of one: leave it out")
    given = machines.Given(settings.gpus, settings.nic_gbps, settings.rdma, own.links)
    nodes = [_node(machine, name, price_of, given) for name in names]
    for node in nodes:
        if linked and node.machine.nic is None:
            raise ConfigError(f"plan.nic_gbps is missing: the link between nodes of {node.machine.name} is unknown")
    return nodes


def _node(machine: Machine, name: Optional[str], price_of: Callable, given: machines.Given) -> machines.Node:
    """Return the machine that INSTANCE or INSTANCE:MARKET names. Raises ConfigError."""
    instance, _, market = (name or "").partition(":")
    node = machines.node(replace(machine, instance=instance or None, market=market or machine.market), price_of, given)
    return replace(node, machine=replace(node.machine, name=name)) if market else node


def _server(config: Config, settings: Plan, own: calibration.Calibration, price_of: Callable) -> machines.Node:
    """Return the machine of a dedicated parameter server. Raises ConfigError."""
    name, price = settings.server_instance, settings.server_usd_per_hour
    if name is None:
        raise ConfigError("plan.server_instance is missing; set plan.servers=0 for servers on the workers' nodes")
    known = name in hardware.instances()
    if not known and price is None:
        near = nearest(name, hardware.instances())
        raise ConfigError(f"plan.server_instance={name}{near}; for another one give plan.server_usd_per_hour")
    provider = "aws" if known and price is None else "custom"
    machine = replace(config.machine, provider=provider, instance=name, usd_per_hour=price, eur_per_hour=None)
    try:
        links = {name: link for name, link in own.links.items() if name == "nic"}
        nic_gbps = None if known else settings.nic_gbps
        node = machines.node(machine, price_of, machines.Given(1, nic_gbps, links=links))
    except ConfigError as error:
        why = str(error).replace("machine.instance", "plan.server_instance").partition(" (or give")[0]
        raise ConfigError(
            f"parameter servers, plan.server_instance={name}: {why}; or give plan.server_usd_per_hour"
        ) from None
    if node.machine.nic_servers is None:
        raise ConfigError(f"plan.server_instance={name}: its network is unknown: give plan.nic_gbps")
    return node


def _rates(network, nodes, swept: dict, settings: Plan, own: calibration.Calibration) -> Tuple[dict, str, str]:
    """Return {(machine, batch, precision): images/s of one device}, their sources, and their error.

    Raises ConfigError if a rate is unknown.
    """
    found, sources, errors = {}, {}, {}
    for node, batch, precision in itertools.product(nodes, swept["batch"], swept["precision"]):
        rate = rates.of_device(network, node.gpu, batch, precision, given=settings.images_per_s, runs=own.runs)
        found[node.machine.name, batch, precision] = rate.images_per_s
        errors[rate.kind] = rate.error
        sources.setdefault(f"{rate.images_per_s:,.1f} images/s, {rate.source}", f"batch {batch} {precision}")
    lines = list(sources) if len(sources) == 1 else [f"{first}: {source}" for source, first in sources.items()]
    more = f"; and {len(lines) - MOST_RATES} more" if len(lines) > MOST_RATES else ""
    return found, "; ".join(lines[:MOST_RATES]) + more, "; ".join(filter(None, errors.values()))


MOST_RATES = 4  # sources in the output
COLUMNS = 120  # of a terminal


def choose(plans: scenarios.Plans, bounds: choice.Bounds) -> Dict[str, int]:
    """Return the recommended plans: description -> index."""
    allowed, given = bounds.satisfied(plans), bounds.each()
    within = " and ".join(
        f"{'within' if name == 'hours' else 'for at most'} {bound:g} {'h' if name == 'hours' else name.upper()}"
        for name, bound in given.items()
    )
    if given and not allowed.any():
        if all(np.isnan(plans[name]).all() for name in given if name != "hours") and set(given) - {"hours"}:
            raise ConfigError("a budget needs a price: give machine.usd_per_hour or machine=aws")
        nearest_one = choice.fastest if "hours" in given else choice.cheapest
        return {f"no plan finishes {within}; the nearest": nearest_one(plans, np.ones(len(allowed), bool))}
    best = {"cheapest": choice.cheapest(plans, allowed), "fastest": choice.fastest(plans, allowed)}
    if given and "hours" not in given:
        best = dict(reversed(best.items()))
    if len(set(best.values())) == 1:
        best = {" and ".join(best): best["fastest"]}
    return {f"{name} {within}".strip(): place for name, place in best.items() if place is not None}


def shown(found: Result) -> List[int]:
    """Return the indices of the plans to print: all if few, else those on the Pareto front of time and cost."""
    plans, count = found.plans, len(found.plans["hours"])
    if count <= table.MOST:
        return list(range(count))
    allowed = found.bounds.satisfied(plans)
    best = choice.front(plans, allowed if allowed.any() else np.ones(count, bool))
    if not len(best):  # no price is known
        best = np.argsort(plans["hours"], kind="stable")
    spread = np.unique(np.linspace(0, len(best) - 1, min(len(best), table.MOST)).astype(int))
    return sorted({*best[spread].tolist(), *found.answer.values()}, key=lambda place: plans["hours"][place])


def write(found: Result, folder: str, config: Config) -> Dict[str, str]:
    """Write plan.csv and plan.png; return their paths. Raises ConfigError."""
    paths = {"table": os.path.join(folder, "plan.csv"), "figure": os.path.join(folder, "plan.png")}
    try:
        os.makedirs(folder, exist_ok=True)
        table.write_csv(found.plans, paths["table"])
        if find_spec("matplotlib") is None:  # in the images of ranks
            del paths["figure"]
        else:
            figure.draw(found.plans, found.bounds, list(found.answer.values()), config.model.name, paths["figure"])
    except OSError as error:
        raise ConfigError(f"plan.output={folder}: {error.strerror}") from None
    return paths


def as_text(found: Result, written: Dict[str, str]) -> str:
    """Return the output for a terminal: inputs, table, recommendation."""
    places = shown(found)
    rows = scenarios.rows(found.plans, places)
    common = ", ".join(_described(name, value) for name, value in table.common(rows).items())
    lines = [*map(_wrapped, [*found.inputs.items(), ("all", common)])]
    lines += ["", table.table(rows, [places.index(place) for place in found.answer.values()]), ""]
    count = len(found.plans["hours"])
    if len(places) < count:
        lines.append(f"{len(places)} of {count:,} plans: no other is both faster and cheaper")
    lines += [f"left out: {number:,} combinations ({why})" for why, number in found.left_out.items()]
    for what, row in _answer(found).items():
        lines.append(f"{what}: {table.sentence(row)}")
    lines.append(f"written to {' and '.join(written.values())}; validation and checkpoints are not included")
    return "\n".join(lines)


def _wrapped(line: Tuple[str, str]) -> str:
    name, text = line
    indent = {"initial_indent": " " * 10, "subsequent_indent": " " * 12, "break_on_hyphens": False}
    parts = [textwrap.fill(part, COLUMNS, **indent) for part in text.split("; ")]
    return f"{name:<10}" + "\n".join(parts)[10:]


def _described(name: str, value) -> str:
    if name == "servers":
        return f"{value} dedicated server machines" if value else "no dedicated server machines"
    return f"{name} {value}".replace("_", " ").replace("True", "yes").replace("False", "no")


def _answer(found: Result) -> Dict[str, dict]:
    return {what: scenarios.rows(found.plans, [place])[0] for what, place in found.answer.items()}


def as_object(found: Result, written: Dict[str, str]) -> dict:
    """Return the output for programs."""
    return {
        "known": found.inputs,
        "count": len(found.plans["hours"]),
        "plans": scenarios.rows(found.plans, shown(found)),
        "left_out": found.left_out,
        "answer": _answer(found),
        "written": written,
    }
