"""Draws the plans of `mxscale plan`: efficiency by devices, cost by hours.

    python tools/plan_figure.py FIGURE.png machine.instance=p3.16xlarge 'plan.nodes=[1,2,4,8]' plan.epochs=90

The settings are those of `mxscale plan`. Only the figure is written. With plan.target the left half has the epochs to
it by global batch, beside published runs of 90 epochs, and the plans of the Pareto front are labelled with theirs.
"""

import sys
from pathlib import Path
from typing import List, Sequence, Tuple

import numpy as np
from hydra import initialize_config_dir

from mxscale.cli import CONF, composition
from mxscale.perfmodel.scenarios import Plans
from mxscale.planner import choice, planning
from mxscale.planner.choice import Limits
from mxscale.rendering import canvas

MOST_LINES = 8
MOST_POINTS = 5000  # of cost against hours


def draw(plans: Plans, limits: Limits, chosen: Sequence[int], title: str, path: str) -> None:
    """Write the figure as PNG.

    Args:
        limits: Drawn as lines.
        chosen: Indices of the recommended plans.

    Raises:
        OSError: The file can't be written.
    """
    import matplotlib

    with matplotlib.rc_context(canvas.STYLE):
        figure, (left, right) = canvas.axes(11.0, 4.6, 2, shared=False)
        if _differ_in_epochs(plans):
            _epochs(plans, left)
        else:
            _efficiency(plans, left)
        _money(plans, limits, chosen, right)
        for axis in (left, right):
            axis.grid()
            if axis.get_legend_handles_labels()[0]:  # none: no plan has the figure
                axis.legend(fontsize=9)
        figure.suptitle(f"{title}: predicted, not measured")
        Path(path).write_bytes(canvas.as_png(figure))


def _efficiency(plans: Plans, axis) -> None:
    """Draw scaling efficiency against devices."""
    series = _series(plans)
    colours = canvas.colours([label for label, _ in series])
    for label, places in series:
        devices, percent = plans["devices"][places], 100 * plans["efficiency"][places]
        axis.plot(devices, percent, "o-", color=colours[label], label=label)
    _logarithmic(axis, plans["devices"])
    axis.set(xlabel="devices", ylabel="% of linear scaling", title="scaling efficiency", ylim=(0, 105))


def _logarithmic(axis, values: np.ndarray) -> None:
    """Give the horizontal axis a logarithmic scale with a tick at each value, or at powers of 2 if they are many."""
    ticks = np.unique(values)
    if len(ticks) > 10:
        ticks = 2 ** np.unique(np.log2(ticks).astype(int))
    axis.set_xscale("log")
    axis.set_xticks(ticks, [str(tick) for tick in ticks])
    axis.minorticks_off()


def _differ_in_epochs(plans: Plans) -> bool:
    return len(np.unique(plans["epochs"])) > 1


# Global batch, epochs, label: the works of README
RUNS = ((16_384, 90, "AWS 2019: 75.7 %"), (32_768, 90, "ChainerMN 2018: 74.9 %"))


def _epochs(plans: Plans, axis) -> None:
    """Draw the epochs to the target against the global batch."""
    batches, places = np.unique(plans["batch"] * plans["devices"], return_index=True)
    axis.plot(batches, plans["epochs"][places], "o-", color=canvas.BLUE, label="plans, by MLPerf's reference points")
    for (batch, epochs, label), colour in zip(RUNS, (canvas.VERMILION, canvas.GREEN), strict=True):
        axis.plot(batch, epochs, "*", ms=12, color=colour, label=label)
    _logarithmic(axis, batches)
    axis.set(xlabel="global batch", ylabel="epochs", title="epochs to the target", ylim=(0, 100))


# Columns that define a line, from the finest on: the first with few enough lines is used
KINDS = (
    ("instance", "comm", "servers_setting", "batch", "precision", "compression", "double_buffering"),
    ("instance", "comm", "servers_setting", "precision"),
    ("instance", "comm", "precision"),
    ("instance", "comm"),
    ("instance",),
)


def _series(plans: Plans) -> List[Tuple[str, np.ndarray]]:
    """Return (label, indices by number of devices) of each line: the fastest plan for each number of devices."""
    order = np.lexsort((-plans["images_per_s"], plans["devices"]))
    for names in KINDS:
        codes = np.zeros(len(plans["hours"]), int)
        for name in names:
            values, code = np.unique(plans[name], return_inverse=True)
            codes = codes * len(values) + code
        if len(np.unique(codes)) <= MOST_LINES:
            break
    groups = [order[codes[order] == code] for code in np.unique(codes)]
    groups = [places[np.unique(plans["devices"][places], return_index=True)[1]] for places in groups]
    groups.sort(key=lambda places: plans["images_per_s"][places].max(), reverse=True)
    lines = groups[:MOST_LINES]
    differing = [name for name in names if len({plans[name][places[0]] for places in lines}) > 1]
    labels = [", ".join(filter(None, (_described(plans, name, places[0]) for name in differing))) for places in lines]
    return [(label or str(plans["comm"][places[0]]), places) for label, places in zip(labels, lines)]


def _described(plans: Plans, name: str, place: int) -> str:
    value = plans[name][place]
    if name == "servers_setting":
        return f"servers {value}" if value else ""
    if name == "double_buffering":
        return "double buffering" if value else "no double buffering"
    return f"{name} {value}" if name in ("batch", "compression") else str(value)


def _money(plans: Plans, limits: Limits, chosen: Sequence[int], axis) -> None:
    """Draw cost against hours on logarithmic axes, with the Pareto front."""
    from matplotlib.ticker import LogLocator, NullFormatter

    currency = choice.currency(plans)
    money, hours = plans[currency], plans["hours"]
    axis.set(xlabel="hours", ylabel=currency.upper(), title="time and cost")
    if not np.isfinite(money).any():
        axis.text(0.5, 0.5, "no known price", ha="center", transform=axis.transAxes)
        return
    drawn = np.unique(np.linspace(0, len(hours) - 1, min(len(hours), MOST_POINTS)).astype(int))
    axis.scatter(hours[drawn], money[drawn], s=12, color=canvas.LIGHT, label=f"{len(drawn):,} of {len(hours):,} plans")
    best = choice.front(plans, np.ones(len(hours), bool))
    axis.plot(hours[best], money[best], color=canvas.INK, linewidth=1, label="Pareto front")
    if _differ_in_epochs(plans):
        for place in best:
            label = f"{plans['epochs'][place]:.0f} epochs"
            axis.annotate(label, (hours[place], money[place]), (5, 5), textcoords="offset points", fontsize=8)
    for number, place in enumerate(dict.fromkeys(chosen)):
        axis.scatter(hours[place], money[place], s=160, marker="*", color=canvas.VERMILION, edgecolor="black", zorder=3,
                     label=None if number else "recommended")  # fmt: skip
    axis.set(xscale="log", yscale="log")
    for scale in (axis.xaxis, axis.yaxis):
        scale.set_major_locator(LogLocator(subs=(1, 2, 5)))
        scale.set_major_formatter("{x:,.10g}")
        scale.set_minor_formatter(NullFormatter())
    if "hours" in limits:
        axis.axvline(limits["hours"], color=canvas.BLUE, linestyle=":", label=f"deadline {limits['hours']:g} h")
    if currency in limits:
        budget = f"budget {limits[currency]:g} {currency.upper()}"
        axis.axhline(limits[currency], color=canvas.GREEN, linestyle=":", label=budget)


def main(path: str, *overrides: str) -> None:
    with initialize_config_dir(str(CONF.resolve()), version_base="1.3"):
        composed = composition.of_run(composition.compose("plan", list(overrides)))
    values, verb = composition.separated(composed, "plan")
    config = planning.config_of(values)
    result = planning.solve(config, verb.plan)
    draw(result.plans, result.limits, list(result.answer.values()), config.model.name, path)


if __name__ == "__main__":
    main(*sys.argv[1:])
