"""Environment variables: what the processes of a run inherit, and what other launchers leave in them."""

import re
from typing import Dict, Mapping, MutableMapping

from mxscale.util.errors import ConfigError

# The variables that ranks inherit. horovodrun repeats its environment in a command line that every user of the machine
# can read. Nothing else, in particular no credential, is therefore passed on.
INHERITED = ("PATH", "HOME", "USER", "LANG", "LC_ALL", "TMPDIR", "LD_LIBRARY_PATH",
             "NVIDIA_VISIBLE_DEVICES", "OPAL_PREFIX", "VIRTUAL_ENV")  # fmt: skip
INHERITED_PREFIXES = ("CUDA_", "MXNET_", "HOROVOD_", "NCCL_", "OMPI_MCA_", "OMP_", "KMP_", "FI_", "UCX_")
PRIVATE = ("MXNET_GLUON_REPO",)  # an address, possibly with a password, that no rank needs

# What launchers set for each process that they start. MXNet and Horovod read them when they are imported or started,
# so one that is left over would make a process of this program a member of another job.
OF_ANOTHER_JOB = re.compile(
    r"HOROVOD_(RANK|SIZE|(LOCAL|CROSS)_(RANK|SIZE)|HOSTNAME|GLOO_RENDEZVOUS_\w+)|OMPI_COMM_WORLD_\w+|PMIX?_\w+|DMLC_\w+"
)
REMOVED = ("PYTHONOPTIMIZE",)  # MXNet's import requires documentation strings
ENGINES = ("ThreadedEnginePerDevice", "ThreadedEngine", "NaiveEngine")
PROCESSES = {"HOROVOD_SIZE": "horovodrun", "OMPI_COMM_WORLD_SIZE": "mpirun", "PMI_SIZE": "mpirun or srun",
             "DMLC_ROLE": "a launcher of parameter servers"}  # fmt: skip


def inherited(environ: Mapping[str, str]) -> Dict[str, str]:
    """Return the variables that ranks inherit."""
    return {k: v for k, v in environ.items() if k in INHERITED or _of_a_library(k)}


def _of_a_library(name: str) -> bool:
    return name.startswith(INHERITED_PREFIXES) and name not in PRIVATE


def recorded(environ: Mapping[str, str]) -> Dict[str, str]:
    """Return the variables that can change a run's result or speed, for environment.json and reruns."""
    return {k: environ[k] for k in sorted(environ) if k == "NVIDIA_VISIBLE_DEVICES" or _of_a_library(k)}


def clean(environ: MutableMapping[str, str]) -> None:
    """Remove the variables of another launcher's job, and those with which MXNet can't be imported.

    Raises:
        ConfigError: Another launcher started this process as one of several, or MXNet has no such engine.
    """
    engine = environ.get("MXNET_ENGINE_TYPE", ENGINES[0])
    if engine not in ENGINES:
        raise ConfigError(f"MXNET_ENGINE_TYPE={engine}: MXNet has {', '.join(ENGINES)}: set one of them, or unset it")
    for name, launcher in PROCESSES.items():
        if environ.get(name, "1") != "1":
            raise ConfigError(
                f"{name}={environ[name]}: set by {launcher}, which starts several processes; mxscale starts the ranks "
                f"itself: run the command directly and set launch.ranks, or unset {name}"
            )
    for name in [name for name in environ if name in REMOVED or OF_ANOTHER_JOB.fullmatch(name)]:
        del environ[name]
