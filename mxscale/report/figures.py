"""Rows of a report -> figures.  Matplotlib is imported when there is something to draw."""

import math
from typing import Dict, List, NamedTuple, Sequence, Tuple

from mxscale.records import pareto, recorded
from mxscale.records.recorded import Row, Spread
from mxscale.report import rows as report
from mxscale.report.canvas import COLOURS, INK, STYLE, Drawn, axes, finished

BARS, SERIES, LABEL = 24, 6, 46  # rows of a figure, series, and letters of a label, at most


class Missing(NamedTuple):
    """A figure that these runs have nothing for."""

    title: str
    why: str


def draw(rows: Sequence[Row]) -> Tuple[List[Drawn], List[Missing]]:
    """The figures of a report, and what is missing for the others."""
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


# ---------------------------------------------------------------- throughput by device count


def throughput(rows: Sequence[Row]):
    """Bars of images/s, lines of efficiency, and what an efficiency of 1 would be: the published figure's form."""
    series = recorded.one_but_for_devices(rows)
    if not series:
        return None
    counts = sorted({row.devices for _, group in series for row in group})
    several = [pair for pair in series if len({row.devices for row in pair[1]}) > 1]
    some = (several or series)[:SERIES]
    figure, bars = axes(max(8.0, 2.2 + 1.1 * len(counts) * max(1, len(some) / 2)))
    line = bars.twinx() if any(row.values("scaling/efficiency") for _, group in some for row in group) else None
    width = 0.8 / len(some)
    for number, (label, group) in enumerate(some):
        colour, shift = COLOURS[number], (number - (len(some) - 1) / 2) * width
        _rate_bars(bars, group, counts, shift, width, colour, label)
        if line:
            _efficiency(line, bars, group, counts, shift, colour)
    bars.set_xticks(range(len(counts)), [str(count) for count in counts])
    aside = max(0.0, (3 - len(counts)) / 2)  # else a lone bar would be the whole figure
    bars.set_xlim(-0.5 - aside, len(counts) - 0.5 + aside)
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
    left_out = f" {len(series) - len(some)} more series are in the table alone." if len(series) > len(some) else ""
    return figure, (
        "Bars: images/s, the median over seeds, with the least and the most. Lines: efficiency against the 1-rank run "
        f"that each run names on record. Dashes: the same at 100 %.{left_out}"
    )


def _rate_bars(on, group, counts, shift, width, colour, label) -> None:
    found = [(counts.index(row.devices) + shift, row.spread("throughput/median")) for row in group]
    middle = [spread.median for _, spread in found]
    on.bar([x for x, _ in found], middle, 0.92 * width, color=colour, label=label, alpha=0.85)
    on.errorbar([x for x, _ in found], middle, _ends([s for _, s in found]), fmt="none", ecolor=INK, capsize=3, lw=1)


def _efficiency(on, bars, group, counts, shift, colour) -> None:
    points = {}
    for row in group:
        efficiency = row.median("scaling/efficiency")
        if efficiency:
            points[counts.index(row.devices) + shift] = (100 * efficiency, row.median("throughput/median") / efficiency)
        elif row.devices == 1:  # by its definition
            points[counts.index(1) + shift] = (100.0, row.median("throughput/median"))
    if len(points) > 1 or any(row.devices > 1 and row.median("scaling/efficiency") for row in group):
        at = sorted(points)
        on.plot(at, [points[x][0] for x in at], "o-", color=colour, mec="white", lw=1.6, ms=7)
        bars.plot(at, [points[x][1] for x in at], "_", color=INK, ms=26, mew=1.2, ls=(0, (4, 3)), lw=0.8)


def _legend(figure, bars, line) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles, labels = bars.get_legend_handles_labels()
    handles = [Patch(color=h.patches[0].get_facecolor()) if hasattr(h, "patches") else h for h in handles]
    handles, labels = list(handles), [_cut(label) for label in labels]
    if labels == ["all alike"]:
        labels = ["images/s"]
    if line:
        handles += [Line2D([], [], marker="o", color=INK), Line2D([], [], marker="_", ls=(0, (4, 3)), color=INK)]
        labels += ["efficiency (right)", "ideal"]
    figure.legend(handles, labels, loc="outside lower center", ncols=min(4, len(labels)), fontsize=9)


# ---------------------------------------------------------------- accuracy against cost


def accuracy_against_cost(rows: Sequence[Row]):
    """Each row a point; the front is what no other row beats in both."""
    in_usd = any(row.values("cost/total_usd") for row in rows)
    metric = "cost/total_usd" if in_usd else "cost/total_eur"
    priced = [row for row in rows if row.values(metric) and row.values("best/val_top1")]
    if not priced:
        return None
    cost, top1 = ([row.spread(name) for row in priced] for name in (metric, "best/val_top1"))
    figure, on = axes(9.0, 4.8)
    best = pareto.front([(c.median, a.median) for c, a in zip(cost, top1)])
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
        f"Medians over seeds, with the least and the most. Diamonds: the Pareto front, which no row beats in both "
        f"({named}{more}). Rows without a cost are not shown."
    )


# ---------------------------------------------------------------- time and cost to target


def to_target(rows: Sequence[Row]):
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
        panel.locator_params(axis="x", nbins=5)  # small amounts have long numbers
        panel.grid(axis="x")
    _names(on[0] if priced else on, aimed, with_target=True)
    return figure, (
        "Until val top-1 first reached target_top1: the median over seeds, with the least and the most; a seed that "
        f"did not reach it counts as endless.{_left_out(rows, aimed)}"
    )


def _target_bar(on, y: int, spread, longest: float) -> None:
    if spread is None or not math.isfinite(spread.median):
        on.text(0.01 * longest, y, "not reached" if spread else "no price known", va="center", fontsize=9, alpha=0.7)
        return
    on.barh(y, spread.median, 0.7, color=COLOURS[2], alpha=0.85)
    high = spread.high if math.isfinite(spread.high) else 1.15 * longest
    ends = [[spread.median - spread.low], [high - spread.median]]
    on.errorbar(spread.median, y, xerr=ends, fmt="none", ecolor=INK, capsize=3, lw=1)
    if not math.isfinite(spread.high):
        on.text(high + 0.02 * longest, y, "not all", va="center", fontsize=8)


# ---------------------------------------------------------------- where time goes


def where_time_goes(rows: Sequence[Row]):
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
    on.axvline(100, color=INK, lw=1.2, ls=(0, (4, 3)), label="a measured step")
    _names(on, timed)
    on.set_xlabel("% of a measured step")
    on.grid(axis="x")
    figure.legend(loc="outside lower center", ncols=4, fontsize=9)
    return figure, (
        "Compute and exchange as sampled steps timed them, one after the other. Past the dashes they overlap, or those "
        f"samples were slower than a step without them; short of it, the update and all else.{_left_out(rows, timed)}"
    )


# ---------------------------------------------------------------- predicted against measured


def predicted(rows: Sequence[Row]):
    pairs = [(row, report.prediction(row)) for row in rows if report.prediction(row)]
    if not pairs:
        return None
    figure, on = axes(6.4, 4.8)
    most = 1.1 * max(max(pair) for _, pair in pairs)
    on.fill_between([0, most], [0, 0.9 * most], [0, 1.1 * most], color=INK, alpha=0.08, lw=0, label="within 10 %")
    on.plot([0, most], [0, most], color=INK, lw=1, ls=(0, (4, 3)), label="as planned")
    on.scatter([p for _, (p, _) in pairs], [m for _, (_, m) in pairs], color=COLOURS[0], s=36, zorder=3)
    on.set_xlim(0, most)
    on.set_ylim(0, most)
    on.set_xlabel("planned, images/s")
    on.set_ylabel("measured, images/s")
    on.grid()
    on.legend(loc="upper left")
    errors = sorted(abs(planned / measured - 1) for _, (planned, measured) in pairs)
    return figure, (
        f"The planner's images/s before each run against those measured, {len(pairs)} rows: median error "
        f"{100 * recorded.spread(errors).median:.1f} %, largest {100 * errors[-1]:.1f} %."
    )


# ---------------------------------------------------------------- what they share


def _ends(spreads: Sequence[Spread]) -> List[List[float]]:
    """From the median down and up, as Matplotlib takes it."""
    return [[s.median - s.low for s in spreads], [s.high - s.median for s in spreads]]


def _names(on, rows: Sequence[Row], with_target: bool = False) -> None:
    words = [_cut(row.label) + (f" → {row.target:g} %" if with_target else "") for row in rows]
    on.set_yticks(range(len(rows)), words, fontsize=9)
    on.set_ylim(len(rows) - 0.4, -0.6)  # the first on top


def _cut(text: str) -> str:
    return text if len(text) <= LABEL else text[: LABEL - 1] + "…"


def _left_out(rows: Sequence[Row], shown: Sequence[Row]) -> str:
    return f" {len(shown)} of {len(rows)} rows are shown." if len(shown) < len(rows) else ""


# file, title, function of the rows -> (figure, caption) or None, what it takes
FIGURES = (
    ("throughput", "Throughput and scaling", throughput, "no run has a throughput and a known number of devices"),
    ("accuracy_cost", "Accuracy against cost", accuracy_against_cost,
     "no run has a cost: name a price, such as machine.usd_per_hour=0.5"),
    ("to_target", "Time and cost to target", to_target, "no run has a target: set target_top1, in percent"),
    ("time", "Where the time goes", where_time_goes,
     "no run was long enough for a sampled step of compute and exchange"),
    ("predicted", "Predicted against measured", predicted, "no run recorded a prediction (plan/images_per_s)"),
)  # fmt: skip
