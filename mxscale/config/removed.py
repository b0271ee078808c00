"""Names of earlier versions, and what replaces them: settings, choices of a group (`launch=docker`) and verbs."""

from typing import Any, Dict, Optional

# Key of a setting -> its default. A run that has another value is read, but neither resumed nor repeated.
DEFAULTS: Dict[str, Any] = {
    "launch.kind": "process",
    "launch.image": None,
    "data.max_pixels": 120_000_000,
    "data.max_file_mb": 512,
    "data.augment.policy": "none",
    "data.augment.policy_ops": 2,
    "data.augment.policy_magnitude": 9,
    "comm.update_on": "worker",
    "comm.threshold": 0.5,
    "comm.hierarchical": False,
}
# Settings without an effect on results: a record may have any value
IGNORED = ("comm.probe_s", "comm.timeline", "evaluation", "tracking.log_model", "tracking.register")

CONTAINERS = "run the command in a container of that image: docker compose run --rm train (docs/containers.md)"
AUGMENT = "use data.augment.erase, mixup, cutmix, or augment=level2 or level3 (docs/input.md)"
COMPARE = "measure the back ends with mxscale test-allreduce comm=NAME, and choose one"
LIMITS = "images of up to 178,956,970 pixels and 512 MiB are accepted; leave out others, or set data.on_bad=skip"
INSTEAD: Dict[str, str] = {
    "launch.kind": CONTAINERS,
    "launch.image": CONTAINERS,
    "launch=docker": CONTAINERS,
    "experiment=finetune_folder": "use mxscale finetune data=imagefolder data.root=DIR data.on_bad=skip",
    "mxscale find-lr": "compare rates in a sweep: mxscale train -m optimizer.lr=0.1,0.2,0.4 (docs/sweeps.md)",
    "schedule=exponential": "use schedule=cosine or schedule=poly schedule.power=N",
    "launch.hosts=compose": "list the workers: 'launch.hosts=[mxscale-worker-1,mxscale-worker-2]'",
    "plan.unavailable": "name the machines to plan for in plan.instance, such as [p3.8xlarge,p3.16xlarge:spot]",
    "leave_out": "run python tools/scaling_model.py in a checkout",
    "figure": "python tools/scaling_model.py FIGURE.png draws that of score; spot prices have none",
    "data.max_pixels": LIMITS,
    "data.max_file_mb": LIMITS,
    "data.augment.policy": AUGMENT,
    "data.augment.policy_ops": AUGMENT,
    "data.augment.policy_magnitude": AUGMENT,
    "threads": "predict and evaluate use the cores of their process, which taskset limits; runs have data.threads",
    "views": "every image is evaluated once, cropped as validation images in training",
    "comm.probe_s": COMPARE,
    "comm=auto": COMPARE,
    "evaluation": "run mxscale evaluate RUN_DIR after the run",
    "tracking.log_model": "run mxscale register RUN_DIR after the run",
    "tracking.register": "run mxscale register RUN_DIR NAME after the run",
    "comm.update_on": "use comm=parameter_server, where each rank updates its weights",
    "comm.hierarchical": "set the environment variable HOROVOD_HIERARCHICAL_ALLREDUCE=1, which ranks inherit",
    "comm.timeline": "set the environment variable HOROVOD_TIMELINE=FILE.json, which ranks inherit",
    "report.compare": "select the two runs on MLflow's page and choose Compare; rerun= compares a run with its record",
    "comm.threshold": "it was that of comm.compression=2bit; use comm.compression=fp16",
}


def refusal(name: str) -> Optional[str]:
    """Return what to do instead of a removed name; None for any other name."""
    return f"{name} was removed: {INSTEAD[name]}" if name in INSTEAD else None
