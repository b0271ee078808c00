"""Versions and features of the installed MXNet and Horovod.

The preparation calls `build` for environment.json. `python -m mxscale.train.build_facts` prints the same as a line of
JSON, with the result of an operation on a GPU, for the doctor, which must work even if importing MXNet fails.
"""

import ctypes
import json

from mxscale.environment import gpus


def build() -> dict:
    """Return the facts; raises what importing MXNet raises."""
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
        "gpus": mx.context.num_gpus(),  # visible to MXNet
        "driver": gpus.driver(),  # present in the machine
        "linked": linked(library) if "CUDA" in features else {},
        "horovod": horovod_build(),
    }


def linked(library: str) -> dict:
    """Return the versions of CUDA, cuDNN and NCCL that `library` contains or is linked to."""
    handle = ctypes.CDLL(library)

    def written(function: str) -> int:
        """Return the number that a C function writes through a pointer; 0 if the function does not exist."""
        number, call = ctypes.c_int(), getattr(handle, function, None)
        if call:
            call(ctypes.byref(number))
        return number.value

    cudnn = getattr(handle, "cudnnGetVersion", None)
    versions = {
        "cuda": gpus.cuda_version(written("cudaRuntimeGetVersion")),
        "cudnn": gpus.library_version(cudnn() if cudnn else 0),
        "nccl": gpus.library_version(written("ncclGetVersion")),
    }
    return {name: version for name, version in versions.items() if version}


def operation() -> str:
    """Return "ok" if an operation runs on the first GPU, else its error."""
    import mxnet as mx

    try:
        mx.nd.ones((1,), ctx=mx.gpu()).asnumpy()
    except mx.MXNetError as error:
        return _cause(error)
    return "ok"


def main() -> None:
    try:
        facts = build()
        if facts["gpus"]:
            facts["operation"] = operation()
    except Exception as error:
        facts = {"error": _cause(error)}
    print(json.dumps(facts), flush=True)


def _cause(error: Exception) -> str:
    """Return the line of an error that names the cause: MXNet adds a traceback before it, numpy advice after it."""
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[-1 if lines[0].startswith('Traceback') else 0].strip()}"


if __name__ == "__main__":
    main()
