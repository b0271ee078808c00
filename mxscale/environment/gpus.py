"""GPUs by the driver's own libraries, CUDA and NVML: names, versions, load. Needs neither MXNet nor a CUDA toolkit."""

import ctypes
from typing import Dict, List, Optional

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


class Memory(ctypes.Structure):  # nvmlMemory_t
    _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]


class Utilisation(ctypes.Structure):  # nvmlUtilization_t
    _fields_ = [("gpu", ctypes.c_uint), ("memory", ctypes.c_uint)]


class Gpus:
    """The GPUs that the driver shows here, in the order of nvidia-smi; none without a driver."""

    def __init__(self):
        self._handles: List[ctypes.c_void_p] = []
        self._millijoules: Dict[int, int] = {}  # by GPU, at the last call of joules()
        try:
            self._library = ctypes.CDLL("libnvidia-ml.so.1")
            if self._library.nvmlInit_v2():
                return
            count = ctypes.c_uint()
            self._library.nvmlDeviceGetCount_v2(ctypes.byref(count))
            for number in range(count.value):
                handle = ctypes.c_void_p()
                self._library.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(number), ctypes.byref(handle))
                self._handles.append(handle)
        except (OSError, AttributeError):  # no driver, or one without these functions
            pass

    def sample(self) -> Dict[str, float]:
        """Return the figures by metric, such as gpu_0_power_usage_watts; what a GPU does not report is omitted."""
        figures = {}
        for number, handle in enumerate(self._handles):
            figures.update({f"gpu_{number}_{name}": value for name, value in self._figures(handle).items()})
        return figures

    def joules(self, seconds: float) -> Optional[float]:
        """Return the energy since the last call, `seconds` ago; None without GPUs, or if that of one is unknown."""
        counter, power, used = ctypes.c_ulonglong(), ctypes.c_uint(), []
        for number, handle in enumerate(self._handles):
            if self._ask("nvmlDeviceGetTotalEnergyConsumption", handle, counter):
                before, self._millijoules[number] = self._millijoules.get(number, counter.value), counter.value
                used.append(max(0, counter.value - before))  # a driver that is loaded again counts from 0
            elif self._ask("nvmlDeviceGetPowerUsage", handle, power):  # before Volta there was no counter
                used.append(seconds * power.value)
        return sum(used) / 1000 if used and len(used) == len(self._handles) else None

    def _figures(self, handle: ctypes.c_void_p) -> Dict[str, float]:
        memory, use, power, limit = Memory(), Utilisation(), ctypes.c_uint(), ctypes.c_uint()
        figures = {}
        if self._ask("nvmlDeviceGetUtilizationRates", handle, use):
            figures["utilization_percentage"] = float(use.gpu)
        if self._ask("nvmlDeviceGetMemoryInfo", handle, memory) and memory.total:
            figures["memory_usage_megabytes"] = memory.used / 1e6
            figures["memory_usage_percentage"] = 100 * memory.used / memory.total
        if self._ask("nvmlDeviceGetPowerUsage", handle, power):
            figures["power_usage_watts"] = power.value / 1000
            if self._ask("nvmlDeviceGetEnforcedPowerLimit", handle, limit) and limit.value:
                figures["power_usage_percentage"] = 100 * power.value / limit.value
        return figures

    def _ask(self, function: str, handle: ctypes.c_void_p, result) -> bool:
        """Call a function of the library; return whether it succeeded."""
        try:
            return getattr(self._library, function)(handle, ctypes.byref(result)) == 0
        except AttributeError:
            return False
