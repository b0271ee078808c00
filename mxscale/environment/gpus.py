"""GPUs as the driver names them, and the versions of CUDA's libraries. Needs neither MXNet nor CUDA."""

import ctypes
from typing import Optional

CAPABILITY_MAJOR, CAPABILITY_MINOR = 75, 76  # CUdevice_attribute, in cuda.h
NO_DEVICE = 100  # CUresult, in cuda.h


def driver() -> dict:
    """Return the driver's GPUs; {} without a driver.

    For example {'cuda': '12.4', 'gpus': [{'name': 'Tesla V100-SXM2-16GB', 'capability': '7.0'}]}.

    `cuda` is the newest CUDA version that the driver supports. `error` is added if the driver does not start.
    """
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return {}
    number = ctypes.c_int()
    cuda.cuDriverGetVersion(ctypes.byref(number))
    facts = {"cuda": cuda_version(number.value), "gpus": []}
    status = cuda.cuInit(0)
    if status:
        return facts if status == NO_DEVICE else {**facts, "error": f"cuInit answered {status}"}
    cuda.cuDeviceGetCount(ctypes.byref(number))
    facts["gpus"] = [_gpu(cuda, device) for device in range(number.value)]
    return facts


def _gpu(cuda, device: int) -> dict:
    name, number = ctypes.create_string_buffer(128), ctypes.c_int()
    cuda.cuDeviceGetName(name, len(name), device)
    capability = []
    for attribute in (CAPABILITY_MAJOR, CAPABILITY_MINOR):
        cuda.cuDeviceGetAttribute(ctypes.byref(number), attribute, device)
        capability.append(str(number.value))
    return {"name": name.value.decode(errors="replace"), "capability": ".".join(capability)}


def cuda_version(number: int) -> Optional[str]:
    """Return 11.2 for 11020."""
    return f"{number // 1000}.{number % 1000 // 10}" if number else None


def library_version(number: int) -> Optional[str]:
    """Return cuDNN's or NCCL's version: 8.1.1 for 8101 and, since cuDNN 9 and NCCL 2.9, 2.12.5 for 21205."""
    major = 10000 if number >= 10000 else 1000
    return f"{number // major}.{number % major // 100}.{number % 100}" if number else None
