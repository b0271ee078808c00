"""What a diagnosis found (diagnosis.json), as lines and as a figure."""

from mxscale.diagnose.breakdown import LEVELS, PROBES, TITLES, WORDS

MUCH = 0.1  # of the cores: what else a machine may do without a word
COLOURS = {"compute": "#4c72b0", "cores": "#8c8c8c", "exchange": "#dd8452", "input": "#55a868"}


def title(found: dict, probe: str) -> str:
    ranks = found["facts"]["ranks"]
    return f"compute alone, 1 rank x {ranks}" if probe == "compute" and ranks > 1 else TITLES[probe]


def table(found: dict) -> str:
    """Rates of the probes, then the parts of a step; each with what it lies between in 95 % of the draws."""
    lines = [f"\n  {'':30}{'images/s':>10}  {'':24}{'ms a step':>10}"]
    for name in [name for name in PROBES if name in found["steps_s"]]:
        rate, step = found["images_per_s"][name], found["steps_s"][name]
        bounds = f"({rate['low']:,.1f} to {rate['high']:,.1f})"
        lines.append(f"  {title(found, name):30}{rate['value']:10,.1f}  {bounds:24}{1000 * step['value']:10.2f}")
    lines.append(f"\n  {'of a step':30}{'share':>10}  {'':24}{'ms':>10}")
    for part, share in found["shares"].items():
        bounds = f"({100 * share['low']:.1f} to {100 * share['high']:.1f})"
        ms = 1000 * share["value"] * whole(found)
        lines.append(f"  {WORDS[part]:30}{100 * share['value']:8.1f} %  {bounds:24}{ms:10.2f}")
    if found["data_wait"] is not None:
        lines.append(f"  {'waited for a batch':30}{100 * found['data_wait']:8.1f} %  (the devices had nothing to do)")
    if found["others_cores"] > MUCH * found["facts"]["cores"]:
        lines.append(
            f"\n  warning: other work took {found['others_cores']:.1f} of {found['facts']['cores']} cores meanwhile: "
            "these times are of a shared machine"
        )
    return "\n".join(lines)


def whole(found: dict) -> float:
    """Seconds of a step of the run."""
    return found["steps_s"][[name for name in LEVELS if name in found["steps_s"]][-1]]["value"]


def advised(found: dict) -> str:
    """The settings, the largest gain first."""
    if not found["advice"]:
        return "  no setting is predicted to gain a per cent"
    width = max(len(one["setting"]) for one in found["advice"])
    lines = ["  most likely to help, by these probes:"]
    for one in found["advice"]:
        gain = f"{100 * one['gain']:+.0f} % images/s{', tried' if one['tried'] else ' at most'}"
        lines.append(f"  {one['setting']:{width}}  {gain:24}  {one['why']}")
    return "\n".join(lines)


def draw(found: dict, path: str) -> None:
    """A step's parts, one after the other, and the rates of the probes; bars of error are the 95 % of the draws."""
    from matplotlib.figure import Figure  # of this thread alone: no state that others share

    figure = Figure(figsize=(10, 5.2), layout="constrained")
    figure.suptitle(found["verdict"], fontsize=11, wrap=True)
    above, below = figure.subplots(2, 1, height_ratios=[1, 1.6])
    _draw_step(above, found)
    _draw_rates(below, found)
    figure.savefig(path, dpi=120)


def _draw_step(axis, found: dict) -> None:
    step, left, lanes = 1000 * whole(found), 0.0, len(found["shares"])
    for lane, (part, share) in enumerate(found["shares"].items()):
        width = step * share["value"]
        ends = [[step * (share["value"] - share["low"])], [step * (share["high"] - share["value"])]]
        label = f"{WORDS[part]} {100 * share['value']:.0f} %"
        axis.barh(0, max(0.0, width), left=left, height=0.5, color=COLOURS[part], label=label)  # below 0 is noise
        left += width
        # Error bars beside each other, not on each other
        axis.errorbar(left, 0.36 * ((lane + 1) / (lanes + 1) - 0.5), xerr=ends, color="black", capsize=3, linewidth=1)
    axis.axvline(step, color="black", linestyle=":", linewidth=1)
    axis.set_yticks([])
    axis.set_ylim(-0.35, 0.35)
    axis.set_xlim(left=0)
    axis.set_xlabel("ms of a step, which ends at the dotted line")
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
