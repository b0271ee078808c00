"""The result of a diagnosis (diagnosis.json) as text."""

from mxscale.diagnose.breakdown import PART_TITLES, TITLES
from mxscale.util import text_table

OTHER_WORK = 0.1  # share of the cores that other processes may use without a warning


def title(result: dict, probe: str) -> str:
    ranks = result["facts"]["ranks"]
    return f"compute alone, 1 rank x {ranks}" if probe == "compute" and ranks > 1 else TITLES[probe]


def table(result: dict) -> str:
    """Return the rates of the probes and the parts of a step, each with its 95 % interval."""
    rates = [["", "images/s", "", "ms per step"]]
    for name, step in result["steps_s"].items():
        rate = result["images_per_s"][name]
        bounds = f"({rate['low']:,.1f} to {rate['high']:,.1f})"
        rates.append([title(result, name), f"{rate['value']:,.1f}", bounds, f"{1000 * step['value']:.2f}"])
    parts = [["part of a step", "share", "", "ms"]]
    for part, share in result["shares"].items():
        bounds = f"({100 * share['low']:.1f} to {100 * share['high']:.1f})"
        ms = 1000 * share["value"] * step_s(result)
        parts.append([PART_TITLES[part], f"{100 * share['value']:.1f} %", bounds, f"{ms:.2f}"])
    if result["data_wait"] is not None:
        parts.append(["data wait", f"{100 * result['data_wait']:.1f} %", "(devices idle)", ""])
    lines = ["", *text_table.columns(rates, (1, 3), "  "), "", *text_table.columns(parts, (1, 3), "  ")]
    if result["others_cores"] > OTHER_WORK * result["facts"]["cores"]:
        lines.append(
            f"\n  warning: other processes used {result['others_cores']:.1f} of {result['facts']['cores']} cores; "
            "these are times of a shared machine"
        )
    return "\n".join(lines)


def step_s(result: dict) -> float:
    return list(result["steps_s"].values())[-1]["value"]


def advice(result: dict) -> str:
    """Return the recommended settings, the largest gain first."""
    if not result["advice"]:
        return "  no setting is predicted to gain 1 % or more"
    rows = [
        [entry["setting"], f"{100 * entry['gain']:+.0f} % images/s at most", entry["why"]] for entry in result["advice"]
    ]
    return "\n".join(["  settings with the largest predicted gain:", *text_table.columns(rows, indent="  ")])
