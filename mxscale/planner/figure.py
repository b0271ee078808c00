"""The figure of plans: throughput and efficiency by devices, cost by hours."""

from typing import Sequence

import numpy as np

from mxscale.perfmodel.scenarios import Plans
from mxscale.planner import choice
from mxscale.planner.choice import Bounds

MOST_LINES = 8
MOST_POINTS = 5000  # of cost against hours

MARKERS = {"compute": "o", "exchange": "v", "input": "s"}  # by bottleneck

# The palette of Okabe and Ito, distinct for colour-blind readers
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999999")


def draw(plans: Plans, bounds: Bounds, chosen: Sequence[int], title: str, path: str) -> None:
    """Write the figure as PNG.

    Args:
        bounds: Drawn as lines.
        chosen: Indices of the recommended plans.

    Raises:
        OSError: The file can't be written.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(16, 5))
    left, middle, right = figure.subplots(1, 3)
    series = _series(plans)
    for colour, (label, places) in zip(COLOURS, series):
        for axis, values in ((left, plans["images_per_s"]), (middle, 100 * plans["efficiency"])):
            axis.plot(plans["devices"][places], values[places], color=colour, label=label)
            _mark(axis, plans, places, values, colour)
    _linear(plans, series, left)
    _bounds_legend(plans, series, middle)
    left.set(xlabel="devices", ylabel="images/s", title="throughput")
    middle.set(xlabel="devices", ylabel="% of linear scaling", title="scaling efficiency")
    middle.set_ylim(0, 105)
    _by_devices(plans, left, middle)
    left.legend(fontsize=8)
    _money(plans, bounds, chosen, series, right)
    for axis in (left, middle, right):
        axis.grid(alpha=0.3)
    figure.suptitle(f"{title}: predicted, not measured")
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def _mark(axis, plans: Plans, places, values, colour: str) -> None:
    """Draw a point for each plan, its shape by bottleneck."""
    for bound, marker in MARKERS.items():
        of_bound = places[plans["bound"][places] == bound]
        axis.scatter(plans["devices"][of_bound], values[of_bound], s=34, marker=marker, color=colour, zorder=3)


def _bounds_legend(plans: Plans, series: list, axis) -> None:
    present = {bound for _, places in series for bound in plans["bound"][places]}
    shapes = [
        axis.scatter([], [], s=34, marker=marker, color="#777777", label=bound)
        for bound, marker in MARKERS.items()
        if bound in present
    ]
    axis.legend(handles=shapes, title="bound by", fontsize=8, title_fontsize=8, loc="lower left")


def _by_devices(plans: Plans, left, middle) -> None:
    """Set a logarithmic axis with ticks at the plans' numbers of devices."""
    ticks = np.unique(plans["devices"])
    if len(ticks) > 10:
        ticks = 2 ** np.unique(np.log2(ticks).astype(int))
    left.set_yscale("log")
    _plain_ticks(left.yaxis)
    for axis in (left, middle):
        axis.set_xscale("log")
        axis.set_xticks(ticks, [str(tick) for tick in ticks])
        axis.minorticks_off()


# Columns that define a line, from the finest on: the first with few enough lines is used
KINDS = (
    ("instance", "comm", "servers_setting", "batch", "precision", "compression", "double_buffering"),
    ("instance", "comm", "servers_setting", "precision"),
    ("instance", "comm", "precision"),
    ("instance", "comm"),
    ("instance",),
)


def _series(plans: Plans) -> list:
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
    differ = [name for name in names if len({plans[name][places[0]] for places in lines}) > 1]
    found = []
    for places in lines:
        label = ", ".join(_described(name, plans[name][places[0]]) for name in differ if plans[name][places[0]] != "")
        found.append((label or str(plans["comm"][places[0]]), places))
    return found


def _described(name: str, value) -> str:
    if name == "comm":
        return str(value).replace("_", " ")
    if name == "servers_setting":
        plural, per_node = "" if value in ("1", "1x") else "s", " per node" * value.endswith("x")
        return "on the nodes" if value == "0" else f"{value.rstrip('x')} server{plural}{per_node}"
    if name == "double_buffering":
        return "double buffering" if value else "no double buffering"
    return f"{name} {value}" if name in ("batch", "compression") else str(value)


def _linear(plans: Plans, series: list, axis) -> None:
    """Draw linear scaling: the rate of one device times their number."""
    highest = {}
    for _, places in series:
        for place in places:
            rate = plans["images_per_s"][place] / plans["efficiency"][place]
            highest[plans["devices"][place]] = max(rate, highest.get(plans["devices"][place], 0))
    devices = sorted(highest)
    axis.plot(devices, [highest[each] for each in devices], "--", color="#777777", linewidth=1, label="linear")


def _money(plans: Plans, bounds: Bounds, chosen: Sequence[int], series: list, axis) -> None:
    """Draw cost against hours, with the Pareto front."""
    currency = choice.currency(plans)
    money, hours = plans[currency], plans["hours"]
    axis.set(xlabel="hours", ylabel=currency.upper(), title="time and cost")
    if not np.isfinite(money).any():
        axis.text(0.5, 0.5, "no known price", ha="center", transform=axis.transAxes)
        return
    some = np.unique(np.linspace(0, len(hours) - 1, min(len(hours), MOST_POINTS)).astype(int))
    axis.scatter(hours[some], money[some], s=12, color="#BBBBBB", label=f"{len(some):,} of {len(hours):,} plans")
    if len(hours) <= 200:
        for colour, (_, places) in zip(COLOURS, series):
            axis.scatter(hours[places], money[places], s=28, color=colour)
    best = choice.front(plans, np.ones(len(hours), bool))
    axis.plot(hours[best], money[best], color="#333333", linewidth=1, label="Pareto front")
    for number, place in enumerate(dict.fromkeys(chosen)):
        axis.scatter(hours[place], money[place], s=160, marker="*", color="#D55E00", edgecolor="black", zorder=3,
                     label=None if number else "recommended")  # fmt: skip
    if hours.max() > 8 * hours.min():
        axis.set_xscale("log")
        _plain_ticks(axis.xaxis)
    if money[np.isfinite(money)].max() > 8 * money[np.isfinite(money)].min():
        axis.set_yscale("log")
        _plain_ticks(axis.yaxis)
    _other_currency(plans, currency, axis)
    bound = bounds.each()
    if "hours" in bound:
        axis.axvline(bound["hours"], color="#0072B2", linestyle=":", label=f"deadline {bound['hours']:g} h")
    if currency in bound:
        budget = f"budget {bound[currency]:g} {currency.upper()}"
        axis.axhline(bound[currency], color="#009E73", linestyle=":", label=budget)
    # below the axes, which are full of points
    axis.legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.12), ncols=2)


def _other_currency(plans: Plans, currency: str, axis) -> None:
    """Add an axis in the other currency if all plans have the same exchange rate."""
    other = "eur" if currency == "usd" else "usd"
    with np.errstate(divide="ignore", invalid="ignore"):
        rates = plans[other] / plans[currency]
    rates = rates[np.isfinite(rates)]
    if not len(rates) or np.ptp(rates) > 1e-6 * rates[0]:
        return
    beside = axis.secondary_yaxis("right", functions=(lambda one: one * rates[0], lambda one: one / rates[0]))
    beside.set_ylabel(other.upper())
    if axis.get_yscale() == "log":
        _plain_ticks(beside.yaxis)


def _plain_ticks(axis) -> None:
    """Label a logarithmic axis 1, 2, 5, 10, ... instead of 10^1."""
    from matplotlib.ticker import LogLocator, NullFormatter

    axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter("{x:,.10g}")
    axis.set_minor_formatter(NullFormatter())
