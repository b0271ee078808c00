"""The preparation of a run, before any rank starts.

It packs the data if necessary and checks the network, its weights, the optimizer and the back end. It also derives the
number of ranks and the batch sizes. Ranks neither pack nor download.
"""

from dataclasses import replace
from typing import Optional, Sequence, Tuple, Union

import mxnet as mx

from mxscale.config.datasets import DATASETS
from mxscale.config.networks import network
from mxscale.config.precisions import PRECISIONS
from mxscale.config.schema import Config, Data
from mxscale.config.sizes import auto_ranks, sizes
from mxscale.data import pack
from mxscale.data.manifest import split_of
from mxscale.distributed.backend_checks import check_backend
from mxscale.environment.container_limits import available_cores
from mxscale.environment.machine import allocated_gpus, cpu_model, multiplies_bf16
from mxscale.environment.placement import Placement
from mxscale.models import graph_trial
from mxscale.rundir.directory import RunDir
from mxscale.rundir.plan import Plan, Split
from mxscale.train import builders, pretrained_init
from mxscale.train.build_facts import build
from mxscale.train.checkpointer import Checkpoint, resumable
from mxscale.train.optim.optimizer import make_optimizer
from mxscale.util.errors import ConfigError


def prepare(run: RunDir, config: Config) -> None:
    """Write plan.json, the settled config.yaml and MXNet's part of environment.json.

    A resumed run is prepared again, with the same result.
    Raises ConfigError if the run cannot start or resume as configured.
    """
    head = "replace" if config.entry == "finetune" else "keep"  # fine-tuning replaces the classifier
    plan, state = replace(run.plan(), head=head), check_state(run, config, resumable(run))
    device, ranks = choose_device(config), plan.fitted_ranks or choose_ranks(config, plan.hosts)
    check_backend(config.comm, config.optimizer.name, device, ranks, plan.hosts)
    config, plan = pretrained_init.obtain(run, config, plan)
    check_settings(config, plan.graph)  # before the data, which may take an hour to pack
    manifest = describe_data(config)
    if plan.data_digest not in (None, manifest["digest"]):
        raise ConfigError(f"resume={run.path}: the data differ from those that it was trained on; start a new run")
    plan = replace(
        plan,
        device=device,
        classes=len(manifest["classes"]),
        class_names=tuple(manifest["classes"]),
        class_weights=class_weights(config.class_weights, manifest),
        splits=manifest["splits"],
        data_digest=manifest["digest"],
        data_dir=manifest.get("dir"),
        skipped=len(manifest["skipped"]),
    )
    check_network(config, plan)
    known_shards = plan.sizes and plan.sizes.shards  # of the first start, before any checkpoint
    shards = state.get("shards") or known_shards
    derived = sizes(config, ranks, plan.splits["train"].count, shards=shards)
    if state and derived.global_batch != state["global_batch"]:
        saved, requested = state["global_batch"], derived.global_batch
        raise ConfigError(f"resume={run.path}: its global batch is {saved}, not {requested}; start a new run")
    if state and state["step"] > derived.total_steps:
        raise ConfigError(
            f"resume={run.path}: it is at step {state['step']:,}, and these settings end at {derived.total_steps:,}; "
            "raise epochs or max_steps"
        )
    run.save(replace(plan, sizes=derived))
    run.write_config(config)  # with the input of the weights, which ranks read and records show
    run.write("environment.json", {**(run.read("environment.json") or {}), "mxnet": build()})


def check_state(run: RunDir, config: Config, checkpoint: Optional[Checkpoint]) -> dict:
    """Return the state.json of a checkpoint, {} without one, after checking that training can resume from it."""
    if checkpoint is None:
        return {}
    state = checkpoint.state
    checkpoint.optimizer.check(make_optimizer(config.optimizer), checkpoint.path)
    if state.get("unsaved"):  # of comm.compression=2bit or updates on servers, which were removed
        lost = f"{state['unsaved']}; start a new run, from its weights with model.pretrained={run.path}"
        raise ConfigError(f"resume={run.path}: {lost}")
    if state.get("under_way") and not config.comm.double_buffering:
        raise ConfigError(
            f"resume={run.path} comm.double_buffering=false: its checkpoint holds gradients of a step in flight, which "
            "would be lost; omit comm.double_buffering"
        )
    return state


def choose_device(config: Config) -> str:
    """Return "gpu" or "cpu"."""
    requested, gpus = config.launch.device, mx.context.num_gpus()
    if requested == "gpu" and not gpus:
        raise ConfigError("launch.device=gpu: MXNet sees no GPU here; use launch.device=cpu")
    if requested == "auto" and not gpus and (allocated := allocated_gpus()):
        raise ConfigError(
            f"launch.device=auto: Slurm allocated GPUs (SLURM_GPUS_ON_NODE={allocated}), and MXNet sees none; use a "
            "build for GPUs (docs/gpus.md), or set launch.device=cpu"
        )
    device = "gpu" if gpus and requested != "cpu" else "cpu"
    check_precision(config.precision, device)
    return device


def check_precision(precision: str, device: str) -> None:
    """Raise ConfigError if the device does not train in this precision."""
    if device not in PRECISIONS[precision].devices:
        needs = "a CPU; use precision=amp" if device == "gpu" else "a GPU; use precision=float32"
        raise ConfigError(f"precision={precision} needs {needs}")
    if precision == "bf16" and not multiplies_bf16():
        raise ConfigError(
            f"precision=bf16: {cpu_model()} has no instructions for it (avx512_bf16), and emulates them more slowly "
            "than float32; use precision=float32"
        )


def choose_ranks(config: Config, hosts=()) -> int:
    """Return the number of ranks; raise ConfigError if the hosts, or the GPUs of this machine, are too few."""
    requested, slots = config.launch.ranks, sum(host.slots for host in hosts)
    gpus = mx.context.num_gpus() if config.launch.device != "cpu" else 0
    ranks = auto_ranks(config, slots, gpus, available_cores()) if requested == "auto" else requested
    if slots and ranks > slots:
        raise ConfigError(f"launch.ranks={requested} is more than launch.hosts takes ({slots}): give NAME:RANKS")
    here = sum(host.slots for host in Placement(ranks, 0, hosts).occupied if host.here) if hosts else ranks
    if gpus and here > gpus:
        raise ConfigError(f"launch.ranks={requested}: {here} on this machine, which has {gpus} GPUs, one for each rank")
    return ranks


def check_settings(config: Config, graph: Optional[str]) -> None:
    """Check network, optimizer, precision and weights as far as they do not depend on the data."""
    smallest, size = network(config.model.name).min_side, config.data.image_size
    if size < smallest:
        raise ConfigError(f"data.image_size={size}: model.name={config.model.name} needs at least {smallest}")
    make_optimizer(config.optimizer)
    if PRECISIONS[config.precision].amp_type:
        setting, other = f"precision={config.precision}", "use precision=float32 or float16"
        if mx.__version__.startswith("1.5."):
            # Its AMP adds functions to the optimizer, which a checkpoint cannot save, and has no bfloat16
            raise ConfigError(f"{setting}: MXNet 1.5 cannot resume with it; {other}, or MXNet 1.9.1")
        if network(config.model.name).from_weights:
            # AMP casts where Python calls an operator; a graph calls its operators itself
            raise ConfigError(f"{setting}: not supported with the graph of model.name=symbol; {other}")
    if graph:
        graph_trial.check(graph, size, config.model.pretrained)


def describe_data(config: Config) -> dict:
    """Return the manifest of the packed data; its splits are `Split`s, per_class counts its training images, if any."""
    data = config.data
    if DATASETS[data.kind].generated:
        classes = data.num_classes or 1000
        return {
            "classes": [str(c) for c in range(classes)],
            "splits": {"train": Split(data.num_images), "val": Split(config.batch.per_device)},
            "digest": f"{data.kind}-{data.num_images}-{classes}-{data.image_size}",
            "skipped": [],
        }
    manifest = pack.prepare(data)
    splits = {name: split_of(manifest, name) for name, entry in manifest["splits"].items() if entry["count"]}
    if "val" not in splits:
        raise ConfigError("data.val_share leaves no image for validation; increase it")
    check_crops(data, manifest["splits"]["train"]["min_side"])
    return {**manifest, "splits": splits, "per_class": manifest["splits"]["train"]["per_class"]}


def check_crops(data: Data, min_side: Optional[int]) -> None:
    """Raise ConfigError if MXNet's reader would damage images: it resizes a crop onto an image of the same size."""
    if min_side == data.image_size and data.reader == "record_iter" and data.augment.crop == "random_resized":
        raise ConfigError(
            f"data.reader=record_iter with data.augment.crop=random_resized damages images of {min_side} pixels, which "
            f"is data.image_size={data.image_size}: use data.reader=turbojpeg, or larger images (data.pack_short_side)"
        )


def class_weights(weights: Union[str, Sequence[float], None], manifest: dict) -> Tuple[float, ...]:
    """Return the factor of each class's losses in label order; empty: none.

    `balanced` is N / (K n_c) for n_c of N images and K classes, as scikit-learn's compute_class_weight: each class has
    the same share of the loss, and the mean over the training images is 1. A class without images does not count.
    """
    classes = len(manifest["classes"])
    if weights is None:
        return ()
    if weights == "balanced":
        counts = manifest["per_class"]
        equal = sum(counts) / sum(count > 0 for count in counts)
        return tuple(equal / count if count else 0.0 for count in counts)
    if len(weights) != classes:
        raise ConfigError(
            f"class_weights={weights}: the data has {classes} classes, expected {classes} numbers in label order"
        )
    return tuple(weights)


def check_network(config: Config, plan: Plan) -> None:
    """Build the network as ranks do, on a CPU, with its weights."""
    net, size = builders.initial_network(config, plan, mx.cpu()), config.data.image_size
    scores = net(mx.sym.var("data")).infer_shape(data=(1, 3, size, size))[1][0]
    if scores != (1, plan.classes):
        raise ConfigError(
            f"model.name={config.model.name} returns {scores[1:]} scores per image, expected {plan.classes}"
        )
