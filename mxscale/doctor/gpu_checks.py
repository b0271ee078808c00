"""Checks of GPUs: visibility, MXNet's code for their architecture, compatible CUDA driver and NCCL.

As in doctor.py, a check returns (state, cause[, fix]), or None if it does not apply.
"""

from mxscale.doctor.check_result import FAIL, OK, WARN, PlannedRun


def on_cpu(facts: dict, run: PlannedRun) -> bool:
    return run.device == "cpu" or not facts["mxnet"].get("gpus")


def gpu(facts: dict, run: PlannedRun):
    mxnet = facts["mxnet"]
    if "error" in mxnet:
        return None
    names = [f"{gpu['name']} ({gpu['capability']})" for gpu in mxnet["driver"].get("gpus", [])]
    if run.device == "cpu":
        return OK, "launch.device=cpu"
    if 0 < mxnet["gpus"] < run.ranks_here:
        few = f"{run.ranks_here} ranks on a machine, which has {mxnet['gpus']}: one rank drives one GPU"
        return FAIL, few, "set launch.ranks, or launch.device=cpu"
    if mxnet["gpus"]:
        return OK, f"{mxnet['gpus']} x {' + '.join(sorted(set(names))) or 'unknown'}"
    missing = FAIL if run.device == "gpu" else WARN
    if "CUDA" not in mxnet["features"]:
        fix = "use the image with BUILD=source or ngc, or set launch.device=cpu"
        if names:
            return missing, f"{names[0]} is present, but this MXNet was built for CPUs", fix
        return (FAIL, "none, and this MXNet was built for CPUs", fix) if missing == FAIL else (OK, "none")
    why, fix = _why_no_gpu(facts)
    return missing, f"MXNet was built for GPUs but finds none: {why}", f"{fix}, or set launch.device=cpu"


def _why_no_gpu(facts: dict):
    driver = facts["mxnet"]["driver"]
    if "error" in driver:
        return f"the driver does not start ({driver['error']})", "restart the machine after a driver update"
    if driver.get("gpus"):
        return "the driver is older than MXNet's CUDA", "update the driver"
    if driver:
        return "none is visible to this process", "check CUDA_VISIBLE_DEVICES"
    if facts["machine"]["driver"]:
        return "the driver's libcuda.so.1 is missing", "start the container with -f compose.gpu.yml (or --gpus all)"
    return "there is no NVIDIA driver", "install it; in a container add -f compose.gpu.yml (or --gpus all)"


def architecture(facts: dict, run: PlannedRun):
    """Check that MXNet has code for the GPUs: otherwise operations fail with `no kernel image is available`."""
    if on_cpu(facts, run):
        return None
    built = facts["mxnet"]["architectures"]
    if built is None:
        return WARN, "unknown: no GPU code found in MXNet's library", "try one step: debug=one_step"
    text = " ".join(built["cubin"]) + "".join(f" {version}+PTX" for version in built["ptx"])
    gpus = facts["mxnet"]["driver"].get("gpus", [])
    lacking = sorted({gpu["capability"] for gpu in gpus if not covers(built, gpu["capability"])})
    if lacking:
        fix = "use the image with BUILD=source and --build-arg MXNET_CUDA_ARCH for these GPUs"
        return FAIL, f"MXNet has code for {text.strip()}, but not for this GPU's {', '.join(lacking)}", fix
    return OK, f"MXNet has code for {text.strip()}"


def covers(built: dict, capability: str) -> bool:
    """Return whether the code runs on GPUs of a compute capability.

    Binary code runs on the same major version, from its minor version up; PTX runs on all later versions
    (CUDA C++ Programming Guide, sec. 3.1.2 to 3.1.4).
    """
    gpu = _numbers(capability)
    cubins, ptx = map(_numbers, built["cubin"]), map(_numbers, built["ptx"])
    return any(c[0] == gpu[0] and c <= gpu for c in cubins) or any(p <= gpu for p in ptx)


def _numbers(version: str) -> tuple:
    return tuple(int(part) for part in version.split("."))


def cuda(facts: dict, run: PlannedRun):
    """Check the driver's CUDA version: since CUDA 11 it runs every CUDA of its major version (CUDA Compatibility)."""
    if on_cpu(facts, run):
        return None
    runtime, driver = facts["mxnet"]["linked"].get("cuda"), facts["mxnet"]["driver"].get("cuda")
    cudnn = facts["mxnet"]["linked"].get("cudnn", "unknown")
    text = f"MXNet's {runtime or 'unknown'} (cuDNN {cudnn}), the driver's {driver or 'unknown'}"
    if not runtime or not driver:
        return WARN, text
    wanted, had = _numbers(runtime), _numbers(driver)
    if had[0] < wanted[0] or (wanted[0] < 11 and had < wanted):
        return FAIL, text, f"update the driver to one for CUDA {runtime} or later, or use a build for CUDA {driver}"
    return OK, f"{text} ({facts['machine']['driver'] or 'unknown version'})"


def nccl(facts: dict, run: PlannedRun):
    if on_cpu(facts, run) or run.ranks < 2:
        return None
    linked, built = facts["mxnet"]["linked"].get("nccl"), facts["mxnet"]["horovod"].get("nccl")
    if not built:
        fix = "build Horovod with HOROVOD_GPU_OPERATIONS=NCCL: the images with BUILD=source or ngc"
        return WARN, "Horovod was built without NCCL: gradients pass through the CPU", fix
    if linked and _numbers(linked)[:2] != _numbers(built)[:2]:
        cause = f"MXNet has {linked} and Horovod {built}: two versions in one process"
        return WARN, cause, "build both with the same version"
    return OK, f"{built}"
