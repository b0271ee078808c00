"""`python plan.py`: what is asked for, what is known, every plan, the one to choose."""

import json
import os
import textwrap
from dataclasses import replace
from importlib.util import find_spec
from typing import Callable, Dict, List, Optional, Tuple

import numpy as np

from mxscale.config.backends import DEFAULT, MODELLED, SERVERS
from mxscale.config.datasets import DATASETS
from mxscale.config.price_sources import PRICE_SOURCES
from mxscale.config.schema import Config
from mxscale.config.sizes import bucket_bytes
from mxscale.cost.run_cost import pricing
from mxscale.launcher.progress import say
from mxscale.perfmodel import calibration, layers, machines, rates, scenarios
from mxscale.planner import choice, figure, keys, table
from mxscale.planner.keys import Asked, listed
from mxscale.util.errors import ConfigError, nearest


def main(config: Config, own: dict, as_json: bool) -> None:
    """Print, write and draw what the training would take.  Raises ConfigError."""
    if not isinstance(as_json, bool):
        raise ConfigError(f"json={as_json}: expected true or false")
    asked = keys.read(own)
    grid, task, known = put_together(config, asked)
    plans, refused = scenarios.evaluate(grid, task)
    if not len(plans["hours"]):
        why = "; ".join(refused) or "nothing is asked for"
        raise ConfigError(f"no combination of what plan.* asks for can be: {why}")
    bounds = choice.Bounds(asked.deadline_hours, asked.budget_usd, asked.budget_eur)
    answer = choose(plans, bounds)
    written = write(plans, bounds, answer, asked.output, config)
    if as_json:
        print(json.dumps(as_object(plans, refused, known, bounds, answer, written)))
    else:
        say(as_text(plans, refused, known, bounds, answer, written))


# ---------------------------------------------------------------- what is known


def put_together(config: Config, asked: Asked) -> Tuple[scenarios.Grid, scenarios.Task, Dict[str, str]]:
    """(what is asked for, what is the same in all plans, what that rests on in words).  Raises ConfigError."""
    swept = {
        "nodes": listed("nodes", asked.nodes, config.machine.nodes),
        "comm": listed("comm", asked.comm, exchange_of(config)),
        "servers": listed("servers", asked.servers, "1x"),
        "batch": listed("batch", asked.batch, config.batch.per_device),
        "precision": listed("precision", asked.precision, config.precision),
        "compression": listed("compression", asked.compression, config.comm.compression),
        "double_buffering": listed("double_buffering", asked.double_buffering, config.comm.double_buffering),
    }
    images, classes, of_data = epoch_of(config, asked)
    network = layers.network(config.model.name, config.data.image_size, classes)
    own = calibration.read(asked.calibrate, config)
    served = SERVERS in map(MODELLED.get, swept["comm"]) and swept["servers"] != ["0"]
    price_of = pricing(config)
    nodes = _nodes(config, asked, own, price_of, linked=served or max(swept["nodes"]) > 1)
    server = _server(config, asked, own, price_of) if served else None
    epochs, given = asked.epochs or config.epochs, asked.input_images_per_s
    devices, said_of_devices = _rates(network, nodes, swept, asked, own)
    known = {
        "network": f"{network.name}: {network.gradients / 1e6:.1f} million gradients, "
        f"{network.flops / 1e9:.2f} GFLOPs a forward",
        "epochs": f"{epochs:g} of {images:,} images ({of_data})",
        "device": said_of_devices,
        "links": "; ".join([*dict.fromkeys(node.links for node in nodes), *filter(None, [own.said])]),
        "input": f"{given:,.0f} images/s a node (given)" if given else "not looked at (plan.input_images_per_s)",
        "price": "; ".join(dict.fromkeys(node.price for node in nodes)),
        "servers": f"{server.links}; {server.price}" if server else None,
    }
    task = replace(task_of(config, network, images, devices), server=server and server.machine, epochs=epochs,
                   input_images_per_s=given)  # fmt: skip
    grid = scenarios.Grid(machine=[node.machine for node in nodes], **swept)
    return grid, task, {what: said for what, said in known.items() if said}


def exchange_of(config: Config) -> str:
    """The back end of a plan: what comm=auto would choose is not known before, and one device exchanges nothing."""
    entry = config.comm.entry
    return DEFAULT if entry.chosen_by_trial or entry.single_rank else entry.name


def task_of(config: Config, network: layers.Network, images: int, devices: Dict) -> scenarios.Task:
    """What a configuration says of all its plans; devices: scenarios.Task.rates."""
    return scenarios.Task(
        network=network,
        images=images,
        epochs=config.epochs,
        rates=devices,
        accumulation=config.batch.accumulation,
        bucket_bytes={
            delayed: bucket_bytes(replace(config.comm, double_buffering=delayed), 4 * network.gradients)
            for delayed in (False, True)
        },
        overlap=config.comm.overlap,
        hierarchical=config.comm.hierarchical,
        setup_s=60 * config.launch.setup_minutes,
        billing=config.machine.billing,
        minimum_s=PRICE_SOURCES[config.machine.provider].minimum_s,
    )


def epoch_of(config: Config, asked: Asked) -> Tuple[int, Optional[int], str]:
    """(training images, classes or None: as published, how that is known).  Raises ConfigError."""
    data = config.data
    published = DATASETS[data.kind]
    classes = len(data.classes) if data.classes else data.num_classes or published.classes
    if asked.images:
        return asked.images, classes, "given"
    if published.generated:
        return data.num_images, classes, "data.num_images"
    if data.train_per_class and classes:
        return data.train_per_class * classes, classes, f"{data.kind}: {data.train_per_class} of each class"
    if not published.train_images or data.classes:
        raise ConfigError(f"plan.images is missing: how many training images data={data.kind} has is not known")
    validation_share = 0 if published.own_validation else data.val_share or 0
    return round(published.train_images * (1 - validation_share)), classes, data.kind


def _nodes(config, asked: Asked, own: calibration.Calibration, price_of: Callable, linked: bool) -> List[machines.Node]:
    """The machines that are asked for.  Raises ConfigError."""
    machine = config.machine
    names = listed("instance", asked.instance, None) if asked.instance else [machine.instance]
    if len(names) > 1 and (machine.usd_per_hour is not None or machine.eur_per_hour is not None):
        raise ConfigError("plan.instance has several, and machine.usd_per_hour is the price of one: leave it out")
    given = machines.Given(asked.gpus, asked.nic_gbps, asked.rdma, own.intra, own.kept, own.nic, own.served)
    nodes = []
    for name in names:
        settings = replace(machine, instance=name)
        node = machines.node(settings, price_of, given)
        if linked and node.machine.nic is None:
            raise ConfigError(f"plan.nic_gbps is missing: the link between nodes of {node.machine.name} is not known")
        nodes.append(node)
    return nodes


def _server(config: Config, asked: Asked, own: calibration.Calibration, price_of: Callable) -> machines.Node:
    """The machine that a parameter server has for itself.  Raises ConfigError."""
    name = asked.server_instance
    if name is None:
        raise ConfigError("plan.server_instance is missing; servers that share the workers' nodes are plan.servers=0")
    by_hand = asked.server_usd_per_hour
    if name not in machines.known() and by_hand is None:
        near = nearest(name, machines.known())
        raise ConfigError(f"plan.server_instance={name}{near}; of another one give plan.server_usd_per_hour")
    provider = "aws" if name in machines.known() and by_hand is None else "custom"
    settings = replace(config.machine, provider=provider, instance=name, usd_per_hour=by_hand, eur_per_hour=None)
    try:
        node = machines.node(settings, price_of, machines.Given(gpus=1, nic=own.nic, served=own.served))
    except ConfigError as error:
        told = str(error).replace("machine.instance", "plan.server_instance").partition(" (or give")[0]
        raise ConfigError(
            f"parameter servers, plan.server_instance={name}: {told}; or give plan.server_usd_per_hour"
        ) from None
    if node.machine.served is None:
        raise ConfigError(f"plan.server_instance={name}: its network is not known{nearest(name, machines.known())}")
    return node


def _rates(network, nodes, swept: dict, asked: Asked, own: calibration.Calibration) -> Tuple[dict, str]:
    """((machine, batch, precision) -> images/s of one device, where they come from).  Raises ConfigError."""
    found, said = {}, {}
    for node in nodes:
        for batch in swept["batch"]:
            for precision in swept["precision"]:
                rate = rates.of_device(network, node.gpu, batch, precision, asked.images_per_s, own.runs)
                found[node.machine.name, batch, precision] = rate.images_per_s
                said.setdefault(f"{rate.images_per_s:,.1f} images/s, {rate.source}", f"batch {batch} {precision}")
    words = list(said) if len(said) == 1 else [f"{first}: {source}" for source, first in said.items()]
    more = f"; and {len(words) - MOST_RATES} more" if len(words) > MOST_RATES else ""
    return found, "; ".join(words[:MOST_RATES]) + more


MOST_RATES = 4  # that are named
COLUMNS = 120  # of a terminal


# ---------------------------------------------------------------- which one, and how it is said


def choose(plans: scenarios.Plans, bounds: choice.Bounds) -> Dict[str, int]:
    """What is to be said -> the place of a plan."""
    kept, given = bounds.kept(plans), bounds.each()
    within = " and ".join(
        f"{'within' if name == 'hours' else 'for at most'} {bound:g} {'h' if name == 'hours' else name.upper()}"
        for name, bound in given.items()
    )
    everything = np.ones(len(kept), bool)
    if given and not kept.any():
        if all(np.isnan(plans[name]).all() for name in given if name != "hours") and set(given) - {"hours"}:
            raise ConfigError("a budget, and no price is known: give machine.usd_per_hour or machine=aws")
        nearest_one = choice.fastest if "hours" in given else choice.cheapest
        return {f"no plan is done {within}; the nearest": nearest_one(plans, everything)}
    best = {"cheapest": choice.cheapest(plans, kept), "fastest": choice.fastest(plans, kept)}
    if given and "hours" not in given:
        best = dict(reversed(best.items()))
    if len(set(best.values())) == 1:
        best = {" and ".join(best): best["fastest"]}
    return {f"{word} {within}".strip(): place for word, place in best.items() if place is not None}


def shown(plans: scenarios.Plans, bounds: choice.Bounds, answer: Dict[str, int]) -> List[int]:
    """Places of the rows to print: all where they are few, else those that no other beats in time and money."""
    count = len(plans["hours"])
    if count <= table.MOST:
        return list(range(count))
    kept = bounds.kept(plans)
    best = choice.front(plans, kept if kept.any() else np.ones(count, bool))
    if not len(best):  # no price is known
        best = np.argsort(plans["hours"], kind="stable")
    spread = np.unique(np.linspace(0, len(best) - 1, min(len(best), table.MOST)).astype(int))
    return sorted({*best[spread].tolist(), *answer.values()}, key=lambda place: plans["hours"][place])


def write(plans, bounds, answer, folder: str, config: Config) -> Dict[str, str]:
    """plan.csv and plan.png; {what: path}.  Raises ConfigError."""
    paths = {"table": os.path.join(folder, "plan.csv"), "figure": os.path.join(folder, "plan.png")}
    try:
        os.makedirs(folder, exist_ok=True)
        table.write_csv(plans, paths["table"])
        if find_spec("matplotlib") is None:  # in the images of ranks
            del paths["figure"]
        else:
            figure.draw(plans, bounds, list(answer.values()), config.model.name, paths["figure"])
    except OSError as error:
        raise ConfigError(f"plan.output={folder}: {error.strerror}") from None
    return paths


def as_text(plans, refused, known, bounds, answer, written) -> str:
    places = shown(plans, bounds, answer)
    rows = scenarios.rows(plans, places)
    alike = ", ".join(_in_words(name, value) for name, value in table.common(rows).items())
    lines = [*map(_wrapped, [*known.items(), ("all", alike)])]
    lines += ["", table.table(rows, [places.index(place) for place in answer.values()]), ""]
    count = len(plans["hours"])
    if len(places) < count:
        lines.append(f"{len(places)} of {count:,} plans: no other is both faster and cheaper")
    lines += [f"left out: {number:,} combinations ({why})" for why, number in refused.items()]
    lines += [f"{what}: {table.sentence(scenarios.rows(plans, [place])[0])}" for what, place in answer.items()]
    lines.append(f"written to {' and '.join(written.values())}; validation and checkpoints are not in it")
    return "\n".join(lines)


def _wrapped(line: Tuple[str, str]) -> str:
    what, said = line
    indent = {"initial_indent": " " * 10, "subsequent_indent": " " * 12}
    parts = [textwrap.fill(part, COLUMNS, **indent) for part in said.split("; ")]
    return f"{what:<10}" + "\n".join(parts)[10:]


def _in_words(name: str, value) -> str:
    if name == "servers":
        return f"{value} machines that are servers alone" if value else "no machine that is a server alone"
    return f"{name} {value}".replace("_", " ").replace("True", "yes").replace("False", "no")


def as_object(plans, refused, known, bounds, answer, written) -> dict:
    """The same for programs."""
    places = shown(plans, bounds, answer)
    return {
        "known": known,
        "count": len(plans["hours"]),
        "plans": scenarios.rows(plans, places),
        "left_out": refused,
        "answer": {what: scenarios.rows(plans, [place])[0] for what, place in answer.items()},
        "written": written,
    }
