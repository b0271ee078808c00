"""The energy of a run and its CO2: what the samples in system.jsonl measured, else machine.watts x time."""

from collections import Counter, defaultdict
from typing import Dict, Optional, Set, Tuple

from mxscale.cost import run_cost
from mxscale.environment.energy import NVML, RAPL, TDP
from mxscale.rundir.directory import SYSTEM, RunDir

NAMES = {f"system/{NVML}": "NVML", f"system/{RAPL}": "RAPL", f"system/{TDP}": "TDP x use"}


def figures(run: RunDir, attempt: int, until_ms: float) -> Tuple[Dict[str, float], Optional[str]]:
    """Return energy/kwh and co2/kg of all attempts, and the source of the energy; ({}, None) if it is unknown.

    machine.watts is an estimate, but of the whole machine: it comes after RAPL and before what is less complete.
    """
    machine, (joules, sources) = run.config().machine, _measured(run)
    if machine.watts and not (sources and all("RAPL" in source for source in sources)):
        joules = machine.watts * sum(used.seconds * used.nodes for used in run_cost.used(run, attempt, until_ms))
        sources = {"machine.watts"}
    if not sources:
        return {}, None
    known = {"energy/kwh": joules / 3.6e6}
    if machine.gco2_per_kwh is not None:
        known["co2/kg"] = known["energy/kwh"] * machine.gco2_per_kwh / 1000
    return known, ", ".join(sorted(sources))


def _measured(run: RunDir) -> Tuple[float, Set[str]]:
    """Return the joules of all attempts and their sources, such as NVML + RAPL; (0, empty) if one's are unknown.

    Only this machine is sampled, so those of several are unknown. A run on GPUs needs theirs, another the processors'.
    """
    plan, joules = run.plan(), defaultdict(Counter)
    for line, _ in run.lines_from(0, SYSTEM):
        joules[line["attempt"]].update({NAMES[key]: value for key, value in line["metrics"].items() if key in NAMES})
    needed = {"NVML"} if plan.device == "gpu" else {"RAPL", "TDP x use"}
    unknown = [one for one in run.attempts if one.ranks and needed.isdisjoint(joules[one.attempt])]
    if unknown or not all(host.here for host in plan.hosts) or any((one.nodes or 1) > 1 for one in run.attempts):
        return 0.0, set()
    known = [each for each in joules.values() if not needed.isdisjoint(each)]
    sources = {" + ".join(sorted(each)) + " (GPUs alone)" * (set(each) == {"NVML"}) for each in known}
    return sum(sum(each.values()) for each in known), sources
