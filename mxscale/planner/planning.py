"""`mxscale plan`: evaluate every plan of the requested settings and recommend one."""

import itertools
import json
import os
import textwrap
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Dict, Iterable, List, Optional, Sequence, Tuple, Union

import numpy as np

from mxscale.config.backends import DEFAULT, MODELLED, SERVERS
from mxscale.config.datasets import DATASETS
from mxscale.config.precisions import PRECISIONS
from mxscale.config.price_sources import PRICE_SOURCES
from mxscale.config.schema import Config, Machine, from_dict
from mxscale.config.sizes import bucket_bytes
from mxscale.config.validation import validate
from mxscale.config.verb_settings import Plan
from mxscale.cost import prices
from mxscale.cost.run_cost import pricing
from mxscale.data.class_names import class_names
from mxscale.data.survey import survey
from mxscale.perfmodel import calibration, convergence, hardware, layers, machines, rates, scenarios
from mxscale.perfmodel.convergence import Convergence
from mxscale.perfmodel.step_time import Link
from mxscale.planner import choice, skypilot, table
from mxscale.planner.choice import Limits
from mxscale.planner.skypilot import UNUSED
from mxscale.rundir.price import Price
from mxscale.util.errors import ConfigError
from mxscale.util.terminal import echo


def main(config: Config, settings: Plan, as_json: bool, typed: Sequence[str]) -> None:
    """Print and write the plans, the first recommended one as a task if settings.task is set. Raises ConfigError.

    Args:
        typed: The settings of the command line, and the chosen files of the groups `data` and `model`.
    """
    result = solve(config, settings)
    written = {"table": table.write(result.plans, settings.output or os.path.join(config.runs, "plan"))}
    if settings.task:
        (what, plan), *_ = result.recommended.items()
        if not choice.satisfied(result.plans, result.limits)[result.answer[what]]:
            raise ConfigError(f"plan.task: {what} is {table.sentence(plan)}: set another limit")
        skypilot.write(config, settings, plan, result.prices[plan["instance"]], typed)
        written["task"] = settings.task
    echo(json.dumps(as_object(result, written)) if as_json else as_text(result, written))


def config_of(values: dict) -> Config:
    """Return the config of composed values, UNUSED for missing data paths: a plan reads only a given folder of images.

    Raises ConfigError.
    """
    entry = DATASETS.get(values["data"]["kind"])
    unused = {name: UNUSED for name in (("root",) if entry and entry.folder else ("root", "train", "val"))}
    given = {name: path for name, path in values["data"].items() if path or name not in unused}
    return validate(from_dict({**values, "data": {**unused, **given}}))


def solve(config: Config, settings: Plan) -> "Result":
    """Return all plans and the recommended ones. Raises ConfigError."""
    grid, task, inputs, kinds = put_together(config, settings)
    plans, left_out = scenarios.evaluate(grid, task)
    if not len(plans["hours"]):
        raise ConfigError(f"no combination of the plan.* settings is valid: {'; '.join(left_out)}")
    limits = {"hours": settings.deadline_hours, "usd": settings.budget_usd, "eur": settings.budget_eur}
    limits = {name: limit for name, limit in limits.items() if limit is not None}
    quoted = {node.name: node.price for node in grid.machine}
    return Result(plans, left_out, inputs, limits, choice.choose(plans, limits), kinds, task.setup_s / 3600, quoted)


@dataclass(frozen=True)
class Result:
    """All plans, and the recommended ones."""

    plans: scenarios.Plans
    left_out: Dict[str, int]  # reason -> number of invalid combinations
    inputs: Dict[str, str]  # descriptions of what the plans rest on
    limits: Limits
    answer: Dict[str, int]  # description -> index of a plan
    kinds: Dict[tuple, str]  # (machine, batch, precision) -> kind of the device's rate, by which its error is known
    setup_hours: float
    prices: Dict[str, Price]  # of a node by the name of its machine

    @cached_property
    def recommended(self) -> Dict[str, dict]:
        """The recommended plans; `hours_90`: the hours at the 90 % error of the device's rate."""
        answer = {}
        for what, place in self.answer.items():
            (row,) = scenarios.rows(self.plans, [place])
            error = hardware.errors(self.kinds[row["instance"], row["batch"], row["precision"]])
            off = min(error.get("p90", 0), 95) / 100 * (row["hours"] - self.setup_hours)
            answer[what] = {**row, "hours_90": [row["hours"] - off, row["hours"] + off] if off else None}
        return answer


def put_together(config: Config, settings: Plan) -> Tuple[scenarios.Grid, scenarios.Task, Dict[str, str], dict]:
    """Return the grid, the settings of all plans, what they rest on, and `Result.kinds`. Raises ConfigError."""
    swept = _swept(config, settings)
    images, classes, images_source = epoch_of(config, settings)
    network = layers.network(config.model.name, config.data.image_size, classes)
    runs, links, links_source = calibration.read(settings.calibrate, config)
    served = SERVERS in map(MODELLED.get, swept["comm"]) and swept["servers"] != ["0"]
    nodes = _nodes(config, settings, links)
    for node in nodes:
        if node.nic is None and (served or max(swept["nodes"]) > 1):
            raise ConfigError(f"plan.nic_gbps is missing: the link between nodes of {node.name} is unknown")
    server = _server(config, settings, links) if served else None
    found = _rates(network, nodes, swept, settings.images_per_s, runs)
    error = "; ".join(filter(None, dict.fromkeys(rate.error for rate in found.values())))
    fed, (epochs, length) = settings.input_images_per_s, _epochs(config, settings)
    buckets = {
        delayed: bucket_bytes(replace(config.comm, double_buffering=delayed), 4 * network.gradients)
        for delayed in (False, True)
    }
    task = scenarios.Task(
        network=network,
        images=images,
        epochs=epochs,
        rates={key: rate.images_per_s for key, rate in found.items()},
        server=server,
        accumulation=config.batch.accumulation,
        bucket_bytes=buckets,
        overlap=config.comm.overlap,
        input_images_per_s=fed,
        setup_s=60 * config.launch.setup_minutes,
        billing=config.machine.billing,
        minimum_s=PRICE_SOURCES[config.machine.provider].minimum_s,
    )
    inputs = {
        "network": f"{network.name}: {network.gradients / 1e6:.1f} million gradients, "
        f"{network.flops / 1e9:.2f} GFLOPs per forward pass",
        "epochs": f"{length} of {images:,} images ({images_source})",
        "device": _sources(found.values()),
        "error": "; ".join(filter(None, [error, *_scaling_errors(nodes, swept["nodes"])])),
        "links": "; ".join([*dict.fromkeys(node.links for node in nodes), *filter(None, [links_source])]),
        "input": f"{fed:,.0f} images/s per node (given)" if fed else "not modelled (plan.input_images_per_s)",
        "energy": "; ".join(dict.fromkeys(node.power for node in nodes)),
        "price": "; ".join(dict.fromkeys(prices.describe(node.price) for node in nodes)),
        "servers": f"{server.links}; {prices.describe(server.price)}" if server else None,
    }
    kinds = {key: rate.kind for key, rate in found.items()}
    return scenarios.Grid(nodes, **swept), task, {name: text for name, text in inputs.items() if text}, kinds


def _epochs(config: Config, settings: Plan) -> Tuple[Union[float, Convergence], str]:
    """Return the epochs, or how they depend on the global batch, and a description. Raises ConfigError."""
    if settings.target is not None:
        if settings.epochs is not None:
            raise ConfigError("plan.target with plan.epochs: the target determines the epochs; leave one of them out")
        if settings.images or config.data.image_size not in (None, 224):
            raise ConfigError(
                "plan.target: its epochs are of ImageNet at 224 px; leave out plan.images, data.image_size"
            )
        return convergence.of(config.model.name, config.data.kind, settings.target)
    epochs = settings.epochs or config.epochs
    if epochs == "auto":
        raise ConfigError("epochs=auto: a plan has a number of epochs; set plan.epochs")
    return epochs, f"{epochs:g}"


def _scaling_errors(nodes: List[machines.Machine], counts: List[int]) -> List[str]:
    """Return the errors of the model's scaling, for each kind of machines among the plans."""
    sizes = [(count, count * node.gpus, node.rdma) for node in nodes for count in counts if count * node.gpus > 1]
    kinds = [hardware.scaling_class(*size) for size in sizes]
    return [hardware.described_errors(kind, kind) for kind in dict.fromkeys(kinds)]


def _swept(config: Config, settings: Plan) -> Dict[str, list]:
    """Return the requested values of each axis of the grid except the machines. Raises ConfigError."""
    backend = config.comm.entry
    swept = {
        "nodes": settings.listed("nodes", config.machine.nodes),
        # The default back end before a trial, and for one rank, which exchanges nothing
        "comm": settings.listed("comm", DEFAULT if backend.single_rank else backend.name),
        "servers": settings.listed("servers", "1x"),
        "batch": settings.listed("batch", config.batch.per_device),
        "precision": settings.listed("precision", config.precision),
        "compression": settings.listed("compression", config.comm.compression),
        "double_buffering": settings.listed("double_buffering", config.comm.double_buffering),
    }
    for name in swept["comm"]:
        if name not in MODELLED:
            raise ConfigError(f"comm={name} has no performance model: set plan.comm to one of {', '.join(MODELLED)}")
    return swept


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
    if published.folder and data.root != UNUSED:
        found = survey(data)
        return found.training_images(data), len(found.classes), f"of {found.images:,} in {data.root}"
    if data.train_per_class and classes:
        return data.train_per_class * classes, classes, f"{data.kind}: {data.train_per_class} per class"
    if not published.train_images or data.classes:
        counted = ", or data.root=DIR, whose images are counted" if published.folder else ""
        raise ConfigError(
            f"plan.images is missing: the number of training images of data={data.kind} is unknown: give it{counted}"
        )
    validation_share = 0 if published.own_validation else data.val_share or 0
    return round(published.train_images * (1 - validation_share)), classes, data.kind


def _nodes(config: Config, settings: Plan, links: Dict[str, Link]) -> List[machines.Machine]:
    """Return the requested machines; links: measured ones. Raises ConfigError."""
    machine = config.machine
    names = settings.listed("instance", None) if settings.instance else [machine.instance]
    for key in ("usd_per_hour", "eur_per_hour", "watts"):
        if len(names) > 1 and getattr(machine, key) is not None:
            raise ConfigError(f"plan.instance lists several, and machine.{key} is that of one: leave it out")
    nodes = []
    for name in names:
        node = machines.node(_named(machine, name), pricing(config), links, settings)
        nodes.append(replace(node, name=name) if ":" in (name or "") else node)
    return nodes


def _named(machine: Machine, name: Optional[str]) -> Machine:
    """Return the settings of a machine with INSTANCE or INSTANCE:MARKET, by default in a usual region of its cloud."""
    instance, _, market = (name or "").partition(":")
    region = machine.region or PRICE_SOURCES[machine.provider].region
    return replace(machine, instance=instance or None, market=market or machine.market, region=region)


def _server(config: Config, settings: Plan, links: Dict[str, Link]) -> machines.Machine:
    """Return the machine of a dedicated parameter server; links: measured ones. Raises ConfigError."""
    name, price = settings.server_instance, settings.server_usd_per_hour
    of_cloud = config.machine.provider if PRICE_SOURCES[config.machine.provider].listed else "aws"
    provider = of_cloud if price is None else "custom"
    machine = replace(_named(config.machine, name), provider=provider, usd_per_hour=price, eur_per_hour=None)
    between = {key: link for key, link in links.items() if key == "nic"}
    nic_gbps = None if name in hardware.instances() else settings.nic_gbps
    try:
        node = machines.node(machine, pricing(config), between, Plan(gpus=1, nic_gbps=nic_gbps))
    except ConfigError as error:
        why = str(error).partition(" (or give")[0]  # the price of the workers does not help
        raise ConfigError(f"plan.server_instance={name}: {why}; or give plan.server_usd_per_hour") from None
    if node.nic_servers is None:
        raise ConfigError(f"plan.server_instance={name}: its network is unknown: give plan.nic_gbps")
    return node


def _rates(
    network: layers.Network, nodes: List[machines.Machine], swept: dict, images_per_s: Optional[float], runs: list
) -> Dict[tuple, rates.Rate]:
    """Return {(machine, batch, precision): rate of one device}.

    Raises ConfigError if a rate is unknown, or one is given for devices of several kinds.
    """
    for node, precision in itertools.product(nodes, swept["precision"]):
        device, has = ("cpu", "no GPU; use float32") if hardware.is_cpu(node.gpu) else ("gpu", "GPUs; use amp")
        if device not in PRECISIONS[precision].devices:
            raise ConfigError(f"precision={precision}: {node.name} has {has}")
    gpus = sorted({node.gpu for node in nodes if node.gpu and not hardware.is_cpu(node.gpu)})
    if images_per_s is not None and len(gpus) > 1:
        raise ConfigError(
            f"plan.images_per_s={images_per_s:g} is the rate of one device, and the machines have {', '.join(gpus)}: "
            "plan each of them by itself, or leave it out"
        )
    return {
        (node.name, batch, precision): rates.of_device(network, node.gpu, batch, precision, images_per_s, runs)
        for node, batch, precision in itertools.product(nodes, swept["batch"], swept["precision"])
    }


def _sources(found: Iterable[rates.Rate]) -> str:
    """Return the first distinct rates with their sources."""
    sources = list(dict.fromkeys(f"{rate.images_per_s:,.1f} images/s, {rate.source}" for rate in found))
    return "; ".join(sources[:MOST_RATES] + [f"and {len(sources) - MOST_RATES} more"] * (len(sources) > MOST_RATES))


MOST_RATES = 4  # sources in the output
COLUMNS = 120  # of a terminal


def shown(result: Result) -> List[int]:
    """Return the indices of the plans to print: all if few, else those on the Pareto front of time and cost."""
    plans, count = result.plans, len(result.plans["hours"])
    if count <= table.MOST:
        return list(range(count))
    allowed = choice.satisfied(plans, result.limits)
    best = choice.front(plans, allowed if allowed.any() else np.ones(count, bool))
    if not len(best):  # no price is known
        best = np.argsort(plans["hours"], kind="stable")
    spread = np.unique(np.linspace(0, len(best) - 1, min(len(best), table.MOST)).astype(int))
    return sorted({*best[spread].tolist(), *result.answer.values()}, key=lambda place: plans["hours"][place])


def as_text(result: Result, written: Dict[str, str]) -> str:
    """Return the output for a terminal: inputs, table, recommendation; written: the names of the files."""
    places = shown(result)
    rows = scenarios.rows(result.plans, places)
    common = ", ".join(f"{table.COLUMNS[name][0]} {table.cell(name, rows[0])}" for name in table.common(rows))
    lines = [*map(_wrapped, [*result.inputs.items(), ("all", common)])]
    lines += ["", table.table(rows, [places.index(place) for place in result.answer.values()]), ""]
    count = len(result.plans["hours"])
    if len(places) < count:
        lines.append(f"{len(places)} of {count:,} plans: no other is both faster and cheaper")
    lines += [f"left out: {number:,} combinations ({why})" for why, number in result.left_out.items()]
    lines += [f"{what}: {table.sentence(row)}" for what, row in result.recommended.items()]
    lines.append(f"written to {' and '.join(written.values())}; validation and checkpoints are not included")
    return "\n".join(lines)


def _wrapped(line: Tuple[str, str]) -> str:
    name, text = line
    indent = {"initial_indent": " " * 10, "subsequent_indent": " " * 12, "break_on_hyphens": False}
    parts = [textwrap.fill(part, COLUMNS, **indent) for part in text.split("; ")]
    return f"{name:<10}" + "\n".join(parts)[10:]


def as_object(result: Result, written: Dict[str, str]) -> dict:
    """Return the output for programs; written: the names of the files."""
    return {
        "known": result.inputs,
        "count": len(result.plans["hours"]),
        "plans": scenarios.rows(result.plans, shown(result)),
        "left_out": result.left_out,
        "answer": result.recommended,
        "written": written,
    }
