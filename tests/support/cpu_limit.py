"""The limit on the CPU time of quick tests: an unmarked test that takes far more than 2 s fails."""

import os
import time

LIMIT_S = 2.0
MARGIN = 5  # CPU time of one test varies by a factor of three between runs on shared machines
CALIBRATION_S = 0.05  # CPU time of `calibration` on a core of 2023


def spent() -> float:
    """Return the CPU time of this process and of its children that have ended, in seconds."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def calibration() -> float:
    """Return the CPU time of a fixed calculation, in seconds."""
    began = time.process_time()
    total = 0
    for number in range(1_000_000):
        total += number * number % 7
    return time.process_time() - began


def excess(seconds: float) -> str:
    """Return what to do about a quick test of so much CPU time, "" if it is within the limit.

    A slow or busy machine is allowed its slowdown, measured now, and every machine MARGIN times the limit.
    """
    if seconds <= MARGIN * LIMIT_S:
        return ""
    allowed = MARGIN * LIMIT_S * max(1.0, calibration() / CALIBRATION_S)
    if seconds <= allowed:
        return ""
    return f"{seconds:.1f} s of CPU time, {allowed:.1f} s allowed here: make it quicker or mark it slow"
