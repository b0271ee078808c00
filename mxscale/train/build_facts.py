"""What this MXNet and this Horovod are and can do: `python -m mxscale.train.build_facts` prints it as a line of JSON.

The preparation calls it for environment.json; the doctor, which must outlive an MXNet that can't be
imported, reads the line.
"""

import ctypes
import json

from mxscale.environment import gpus
from mxscale.environment.description import identity


def build() -> dict:
    """Raises whatever importing MXNet raises."""
    import mxnet as mx
    import mxnet.runtime
    import numpy

    from mxscale.distributed.communicators import horovod_build

    features = sorted(name for name, feature in mxnet.runtime.Features().items() if feature.enabled)
    library = mx.libinfo.find_lib_path()[0]
    return {
        "version": mx.__version__,
        "numpy": numpy.__version__,
        "library": library,
        "features": features,
        "gpus": mx.context.num_gpus(),  # that MXNet sees
        "driver": gpus.driver(),  # what is there
        "linked": linked(library) if "CUDA" in features else {},
        "architectures": gpus.architectures(library) if "CUDA" in features else None,
        "horovod": horovod_build(),
        "image": identity(),  # that this process runs in: not always its parent's
    }


def linked(library: str) -> dict:
    """The versions of CUDA, cuDNN and NCCL that `library` runs with: its own code, or what it was linked to."""
    handle = ctypes.CDLL(library)
    found = {
        "cuda": gpus.cuda_version(_number(handle, "cudaRuntimeGetVersion")),
        "cudnn": gpus.cudnn_version(_returned(handle, "cudnnGetVersion")),
        "nccl": gpus.nccl_version(_number(handle, "ncclGetVersion")),
    }
    return {name: version for name, version in found.items() if version}


def _number(handle, function: str) -> int:
    """Through a pointer; 0 where there is no such function."""
    number = ctypes.c_int()
    try:
        getattr(handle, function)(ctypes.byref(number))
    except AttributeError:
        return 0
    return number.value


def _returned(handle, function: str) -> int:
    try:
        call = getattr(handle, function)
    except AttributeError:
        return 0
    call.restype = ctypes.c_size_t
    return call()


def main() -> None:
    try:
        facts = build()
    except Exception as error:
        # The first line names the cause: numpy goes on with advice for whoever wrote the code
        lines = str(error).strip().splitlines() or [""]
        facts = {"error": f"{type(error).__name__}: {lines[-1 if lines[0].startswith('Traceback') else 0].strip()}"}
    print(json.dumps(facts), flush=True)


if __name__ == "__main__":
    main()
