"""The result of a diagnosis (diagnosis.json) as text and as a figure."""

from mxscale.diagnose.breakdown import LEVELS, PART_TITLES, PROBES, TITLES
from mxscale.util import text_table

OTHER_WORK = 0.1  # share of the cores that other processes may use without a warning
COLOURS = {"compute": "#4c72b0", "cores": "#8c8c8c", "exchange": "#dd8452", "input": "#55a868"}


def title(found: dict, probe: str) -> str:
    ranks = found["facts"]["ranks"]
    return f"compute alone, 1 rank x {ranks}" if probe == "compute" and ranks > 1 else TITLES[probe]


def table(found: dict) -> str:
    """Return the rates of the probes and the parts of a step, each with its 95 % interval."""
    rates = [["", "images/s", "", "ms per step"]]
    for name in [name for name in PROBES if name in found["steps_s"]]:
        rate, step = found["images_per_s"][name], found["steps_s"][name]
        bounds = f"({rate['low']:,.1f} to {rate['high']:,.1f})"
        rates.append([title(found, name), f"{rate['value']:,.1f}", bounds, f"{1000 * step['value']:.2f}"])
    parts = [["part of a step", "share", "", "ms"]]
    for part, share in found["shares"].items():
        bounds = f"({100 * share['low']:.1f} to {100 * share['high']:.1f})"
        ms = 1000 * share["value"] * step_s(found)
        parts.append([PART_TITLES[part], f"{100 * share['value']:.1f} %", bounds, f"{ms:.2f}"])
    if found["data_wait"] is not None:
        parts.append(["data wait", f"{100 * found['data_wait']:.1f} %", "(devices idle)", ""])
    lines = ["", *text_table.columns(rates, (1, 3), "  "), "", *text_table.columns(parts, (1, 3), "  ")]
    if found["others_cores"] > OTHER_WORK * found["facts"]["cores"]:
        lines.append(
            f"\n  warning: other processes used {found['others_cores']:.1f} of {found['facts']['cores']} cores; "
            "these are times of a shared machine"
        )
    return "\n".join(lines)


def step_s(found: dict) -> float:
    return found["steps_s"][[name for name in LEVELS if name in found["steps_s"]][-1]]["value"]


def advice(found: dict) -> str:
    """Return the recommended settings, the largest gain first."""
    if not found["advice"]:
        return "  no setting is predicted to gain 1 % or more"
    rows = []
    for one in found["advice"]:
        gain = f"{100 * one['gain']:+.0f} % images/s{', tried' if one['tried'] else ' at most'}"
        rows.append([one["setting"], gain, one["why"]])
    return "\n".join(["  settings with the largest predicted gain:", *text_table.columns(rows, indent="  ")])


def draw(found: dict, path: str) -> None:
    """Draw the parts of a step and the rates of the probes, with 95 % intervals."""
    from matplotlib.figure import Figure  # not pyplot, whose state is shared by all threads

    figure = Figure(figsize=(10, 5.2), layout="constrained")
    figure.suptitle(found["verdict"], fontsize=11, wrap=True)
    above, below = figure.subplots(2, 1, height_ratios=[1, 1.6])
    _draw_step(above, found)
    _draw_rates(below, found)
    figure.savefig(path, dpi=120)


def _draw_step(axis, found: dict) -> None:
    step, left, count = 1000 * step_s(found), 0.0, len(found["shares"])
    for number, (part, share) in enumerate(found["shares"].items()):
        width = step * share["value"]
        ends = [[step * (share["value"] - share["low"])], [step * (share["high"] - share["value"])]]
        label = f"{PART_TITLES[part]} {100 * share['value']:.0f} %"
        axis.barh(0, max(0.0, width), left=left, height=0.5, color=COLOURS[part], label=label)  # below 0: noise
        left += width
        # each error bar has its own height, so that they do not overlap
        axis.errorbar(left, 0.36 * ((number + 1) / (count + 1) - 0.5), xerr=ends, color="black", capsize=3, linewidth=1)
    axis.axvline(step, color="black", linestyle=":", linewidth=1)
    axis.set_yticks([])
    axis.set_ylim(-0.35, 0.35)
    axis.set_xlim(left=0)
    axis.set_xlabel("ms; the step ends at the dotted line")
    axis.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=4, frameon=False)
    _plain(axis)


def _draw_rates(axis, found: dict) -> None:
    names = [name for name in PROBES if name in found["images_per_s"]]
    for place, name in enumerate(names):
        rate = found["images_per_s"][name]
        ends = [[rate["value"] - rate["low"]], [rate["high"] - rate["value"]]]
        axis.barh(place, rate["value"], color=COLOURS[LEVELS.get(name, "input")])
        axis.errorbar(rate["value"], place, xerr=ends, color="black", capsize=3, linewidth=1)
        axis.annotate(
            f"{rate['value']:,.0f}", (rate["high"], place), xytext=(6, 0), textcoords="offset points", va="center"
        )
    axis.set_yticks(range(len(names)), [title(found, name) for name in names])
    axis.invert_yaxis()
    axis.margins(x=0.12)
    axis.set_xlim(left=0)
    axis.set_xlabel("images/s")
    _plain(axis)


def _plain(axis) -> None:
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)
