"""Load of NVIDIA's GPUs from the driver's own library. Needs neither CUDA nor a Python package."""

import ctypes
from typing import Dict, List


class Memory(ctypes.Structure):  # nvmlMemory_t
    _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]


class Utilisation(ctypes.Structure):  # nvmlUtilization_t
    _fields_ = [("gpu", ctypes.c_uint), ("memory", ctypes.c_uint)]


class Gpus:
    """The GPUs that the driver shows here, in the order of nvidia-smi; none without a driver."""

    def __init__(self):
        self._handles: List[ctypes.c_void_p] = []
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
