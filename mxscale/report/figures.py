"""The figures of a report."""

import math
from typing import Dict, List, NamedTuple, Sequence, Tuple

from mxscale.records import recorded
from mxscale.records.recorded import Row, Spread
from mxscale.rendering.canvas import COLOURS, INK, STYLE, Drawn, axes, finished
from mxscale.report import rows as report

BARS, SERIES, LABEL = 24, 6, 46  # limits: rows of a figure, series, letters of a label


class Missing(NamedTuple):
    """A figure for which the runs have no data."""

    title: str
    why: str


def draw(rows: Sequence[Row]) -> Tuple[List[Drawn], List[Missing]]:
    """Return the figures of a report, and those that can't be drawn."""
    import matplotlib

    drawn, missing = [], []
    with matplotlib.rc_context(STYLE):
        for name, title, function, why in FIGURES:
            found = function(rows)
            if found is None:
                missing.append(Missing(title, why))
            else:
                figure, caption = found
                drawn.append(finished(name, title, caption, figure))
    return drawn, missing


def throughput(rows: Sequence[Row]):
    """Draw bars of images/s, lines of efficiency, and the images/s of linear scaling."""
    series = recorded.device_series(rows)
    if not series:
        return None
    counts = sorted({row.devices for _, group in series for row in group})
    several = [pair for pair in series if len({row.devices for row in pair[1]}) > 1]
    shown = (several or series)[:SERIES]
    figure, bars = axes(max(8.0, 2.2 + 1.1 * len(counts) * max(1, len(shown) / 2)))
    line = bars.twinx() if any(row.values("scaling/efficiency") for _, group in shown for row in group) else None
    width = 0.8 / len(shown)
    for number, (label, group) in enumerate(shown):
        shift = (number - (len(shown) - 1) / 2) * width
        at = {count: place + shift for place, count in enumerate(counts)}
        _rate_bars(bars, group, at, width, color=COLOURS[number], label=label)
        if line:
            _efficiency(line, bars, group, at, COLOURS[number])
    bars.set_xticks(range(len(counts)), [str(count) for count in counts])
    margin = max(0.0, (3 - len(counts)) / 2)  # so that a single bar does not fill the figure
    bars.set_xlim(-0.5 - margin, len(counts) - 0.5 + margin)
    bars.set_xlabel("devices")
    bars.set_ylabel("images/s")
    bars.set_ylim(0, 1.18 * bars.get_ylim()[1])
    bars.grid(axis="y")
    if line:
        line.set_ylim(0, 118)
        line.set_yticks(range(0, 101, 20))
        line.set_ylabel("scaling efficiency, %")
        line.spines["right"].set_visible(True)
    _legend(figure, bars, line)
    more = f" {len(series) - len(shown)} more series are only in the table." if len(series) > len(shown) else ""
    return figure, (
        "Bars: images/s, median over seeds, with minimum and maximum. Lines: efficiency against the recorded run with "
        f"1 rank. Dashes: images/s at 100 % efficiency.{more}"
    )


def _rate_bars(on, group: Sequence[Row], at: Dict[int, float], width: float, **style) -> None:
    """Draw the rates of a series; at: number of devices -> position."""
    x, spreads = [at[row.devices] for row in group], [row.spread("throughput/median") for row in group]
    middle = [spread.median for spread in spreads]
    on.bar(x, middle, 0.92 * width, alpha=0.85, **style)
    on.errorbar(x, middle, _ends(spreads), fmt="none", ecolor=INK, capsize=3, lw=1)


def _efficiency(on, bars, group: Sequence[Row], at: Dict[int, float], colour: str) -> None:
    """Draw the efficiency of a series, and on `bars` its linear scaling."""
    points = {}
    for row in group:
        efficiency = row.median("scaling/efficiency")
        if efficiency:
            points[at[row.devices]] = (100 * efficiency, row.median("throughput/median") / efficiency)
        elif row.devices == 1:  # by definition
            points[at[1]] = (100.0, row.median("throughput/median"))
    if len(points) > 1 or any(row.devices > 1 and row.median("scaling/efficiency") for row in group):
        x = sorted(points)
        on.plot(x, [points[each][0] for each in x], "o-", color=colour, mec="white", lw=1.6, ms=7)
        bars.plot(x, [points[each][1] for each in x], "_", color=INK, ms=26, mew=1.2, ls=(0, (4, 3)), lw=0.8)


def _legend(figure, bars, line) -> None:
    from matplotlib.lines import Line2D

    handles, labels = bars.get_legend_handles_labels()
    labels = [_cut(label) for label in labels]
    if labels == ["all alike"]:
        labels = ["images/s"]
    if line:
        handles += [Line2D([], [], marker="o", color=INK), Line2D([], [], marker="_", ls=(0, (4, 3)), color=INK)]
        labels += ["efficiency (right)", "linear scaling"]
    figure.legend(handles, labels, loc="outside lower center", ncols=min(4, len(labels)), fontsize=9)


def accuracy_against_cost(rows: Sequence[Row]):
    """Draw each row as a point, and the Pareto front."""
    in_usd = any(row.values("cost/total_usd") for row in rows)
    metric = "cost/total_usd" if in_usd else "cost/total_eur"
    priced = [row for row in rows if row.values(metric) and row.values("best/val_top1")]
    if not priced:
        return None
    cost, top1 = ([row.spread(name) for row in priced] for name in (metric, "best/val_top1"))
    figure, on = axes(9.0, 4.8)
    best = recorded.pareto_front([(c.median, a.median) for c, a in zip(cost, top1)])
    for places, colour, marker in ((set(range(len(priced))) - set(best), COLOURS[0], "o"), (best, COLOURS[3], "D")):
        x, y = [cost[i] for i in sorted(places)], [top1[i] for i in sorted(places)]
        if x:
            on.errorbar([s.median for s in x], [s.median for s in y], marker=marker, color=colour, ms=6, lw=0,
                        elinewidth=0.9, capsize=2, xerr=_ends(x), yerr=_ends(y))  # fmt: skip
    on.step([cost[i].median for i in best], [top1[i].median for i in best], where="post", color=COLOURS[3], lw=1.2)
    for number, i in enumerate(best[:8]):
        below = number % 2
        on.annotate(f"{number + 1}", (cost[i].median, top1[i].median), (7, -13 if below else 6), fontsize=9,
                    textcoords="offset points", color=COLOURS[3], fontweight="bold")  # fmt: skip
    if max(c.high for c in cost) > 30 * max(min(c.low for c in cost), 1e-12):
        on.set_xscale("log")
    on.set_xlabel(f"cost, {'USD' if in_usd else 'EUR'}")
    on.set_ylabel("best val top-1, %")
    on.grid()
    named = "; ".join(f"{n + 1}: {priced[i].label}" for n, i in enumerate(best[:8]))
    more = f" and {len(best) - 8} more" if len(best) > 8 else ""
    return figure, (
        f"Medians over seeds, with minimum and maximum. Diamonds: the Pareto front; no row is better in both "
        f"({named}{more}). Rows without a cost are not shown."
    )


def to_target(rows: Sequence[Row]):
    """Draw time and cost to target by row."""
    aimed = [row for row in rows if report.reached(row)][:BARS]
    if not aimed:
        return None
    priced = any(report.reached(row, "cost/usd_to_target") for row in aimed)
    figure, on = axes(10.0, 1.5 + 0.34 * len(aimed), 2 if priced else 1)
    panels = zip(on if priced else [on], (("time/to_target_s", "s"), ("cost/usd_to_target", "USD")))
    for panel, (metric, unit) in panels:
        found = [report.reached(row, metric) for row in aimed]
        longest = max([s.high for s in found if s and math.isfinite(s.high)], default=1.0)
        for y, spread in enumerate(found):
            _target_bar(panel, y, spread, longest)
        panel.set_xlim(0, 1.3 * longest)
        panel.set_xlabel(f"{'time' if unit == 's' else 'cost'} to target, {unit}")
        panel.locator_params(axis="x", nbins=5)  # labels of small amounts are long
        panel.grid(axis="x")
    _names(on[0] if priced else on, aimed, with_target=True)
    return figure, (
        "Until val top-1 first reached target_top1: median over seeds, with minimum and maximum. A seed that did not "
        f"reach it counts as infinite.{_left_out(rows, aimed)}"
    )


def _target_bar(on, y: int, spread, longest: float) -> None:
    if spread is None or not math.isfinite(spread.median):
        on.text(0.01 * longest, y, "not reached" if spread else "no price", va="center", fontsize=9, alpha=0.7)
        return
    on.barh(y, spread.median, 0.7, color=COLOURS[2], alpha=0.85)
    high = spread.high if math.isfinite(spread.high) else 1.15 * longest
    ends = [[spread.median - spread.low], [high - spread.median]]
    on.errorbar(spread.median, y, xerr=ends, fmt="none", ecolor=INK, capsize=3, lw=1)
    if not math.isfinite(spread.high):
        on.text(high + 0.02 * longest, y, "not all", va="center", fontsize=8)


def step_time(rows: Sequence[Row]):
    """Draw compute, exchange and data wait as shares of a measured step."""
    timed = [row for row in rows if report.shares(row)][:BARS]
    if not timed:
        return None
    figure, on = axes(10.0, 1.7 + 0.34 * len(timed))
    colours: Dict[str, str] = {"compute": COLOURS[0], "exchange": COLOURS[1], "waiting for data": COLOURS[3]}
    starts = [0.0] * len(timed)
    for part, colour in colours.items():
        sizes = [100 * report.shares(row).get(part, 0.0) for row in timed]
        if any(sizes):
            on.barh(range(len(timed)), sizes, 0.7, starts, color=colour, label=part, alpha=0.9)
            starts = [start + size for start, size in zip(starts, sizes)]
    on.axvline(100, color=INK, lw=1.2, ls=(0, (4, 3)), label="measured step")
    _names(on, timed)
    on.set_xlabel("% of a measured step")
    on.grid(axis="x")
    figure.legend(loc="outside lower center", ncols=4, fontsize=9)
    return figure, (
        "Compute and exchange of sampled steps, timed one after the other. Beyond the dashes, they overlap, or the "
        f"samples were slower than other steps. A gap is the update and other work.{_left_out(rows, timed)}"
    )


def _ends(spreads: Sequence[Spread]) -> List[List[float]]:
    """Return the distances from the median to minimum and maximum, as Matplotlib's error bars need them."""
    return [[s.median - s.low for s in spreads], [s.high - s.median for s in spreads]]


def _names(on, rows: Sequence[Row], with_target: bool = False) -> None:
    labels = [_cut(row.label) + (f" → {row.target:g} %" if with_target else "") for row in rows]
    on.set_yticks(range(len(rows)), labels, fontsize=9)
    on.set_ylim(len(rows) - 0.4, -0.6)  # the first row on top


def _cut(text: str) -> str:
    return text if len(text) <= LABEL else text[: LABEL - 1] + "…"


def _left_out(rows: Sequence[Row], shown: Sequence[Row]) -> str:
    return f" {len(shown)} of {len(rows)} rows are shown." if len(shown) < len(rows) else ""


# file, title, function that returns (figure, caption) or None, reason of None
FIGURES = (
    ("throughput", "Throughput and scaling", throughput, "no run has a throughput and a known number of devices"),
    ("accuracy_cost", "Accuracy against cost", accuracy_against_cost,
     "no run has a cost: set a price, such as machine.usd_per_hour=0.5"),
    ("to_target", "Time and cost to target", to_target, "no run has a target: set target_top1, in percent"),
    ("time", "Time of a step", step_time, "no run was long enough for a sampled step of compute and exchange"),
)  # fmt: skip
