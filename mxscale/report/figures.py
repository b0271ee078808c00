"""The figures of a report."""

from typing import Dict, List, Sequence, Tuple

from mxscale.records import recorded
from mxscale.records.recorded import Row, Spread
from mxscale.rendering.canvas import BLUE, INK, STYLE, VERMILION, Drawn, axes, colours, finished

SERIES, LABEL, NUMBERED = 6, 46, 8  # limits: series of a figure, letters of a label, numbers on the Pareto front


def draw(rows: Sequence[Row]) -> Tuple[List[Drawn], Dict[str, str]]:
    """Return the figures of a report, and why others can't be drawn, by title."""
    import matplotlib

    drawn, missing = [], {}
    with matplotlib.rc_context(STYLE):
        for name, title, function, why in FIGURES:
            drawing = function(rows)
            if drawing is None:
                missing[title] = why
            else:
                figure, caption = drawing
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
    of_series = colours(label for label, _ in shown)
    for number, (label, group) in enumerate(shown):
        shift = (number - (len(shown) - 1) / 2) * width
        at = {count: place + shift for place, count in enumerate(counts)}
        _rate_bars(bars, group, at, width, color=of_series[label], label=label)
        if line:
            _efficiency(line, bars, group, at, of_series[label])
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
        on.plot(x, [points[place][0] for place in x], "o-", color=colour, mec="white", lw=1.6, ms=7)
        bars.plot(x, [points[place][1] for place in x], "_", color=INK, ms=26, mew=1.2, ls=(0, (4, 3)), lw=0.8)


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
    """Draw each row as a point, and the Pareto front, whose rows have numbers."""
    in_usd = any(row.values("cost/total_usd") for row in rows)
    metric = "cost/total_usd" if in_usd else "cost/total_eur"
    priced = [row for row in rows if row.values(metric) and row.values("best/val_top1")]
    if not priced:
        return None
    cost, top1 = ([row.spread(name) for row in priced] for name in (metric, "best/val_top1"))
    x, y = ([spread.median for spread in spreads] for spreads in (cost, top1))
    front = recorded.pareto_front(list(zip(x, y)))
    figure, on = axes(9.0, 4.8)
    on.errorbar(x, y, _ends(top1), _ends(cost), fmt="o", color=BLUE, ms=6, elinewidth=0.9, capsize=2)
    on.step([x[i] for i in front], [y[i] for i in front], "D-", where="post", color=VERMILION, lw=1.2, zorder=3)
    for number, i in enumerate(front[:NUMBERED], 1):
        on.annotate(f"{number}", (x[i], y[i]), (7, 6), textcoords="offset points", color=VERMILION, fontsize=9)
    on.set_xlabel(f"cost, {'USD' if in_usd else 'EUR'}")
    on.set_ylabel("best val top-1, %")
    on.grid()
    named = "; ".join(f"{number}: {priced[i].label}" for number, i in enumerate(front[:NUMBERED], 1))
    more = f" and {len(front) - NUMBERED} more" if len(front) > NUMBERED else ""
    return figure, (
        f"Medians over seeds, with minimum and maximum. Diamonds: the Pareto front; no row is better in both "
        f"({named}{more}). Rows without a cost are not shown."
    )


def _ends(spreads: Sequence[Spread]) -> List[List[float]]:
    """Return the distances from the median to minimum and maximum, as Matplotlib's error bars need them."""
    return [[s.median - s.low for s in spreads], [s.high - s.median for s in spreads]]


def _cut(text: str) -> str:
    return text if len(text) <= LABEL else text[: LABEL - 1] + "…"


# file, title, function that returns (figure, caption) or None, reason of None
FIGURES = (
    ("throughput", "Throughput and scaling", throughput, "no run has a throughput and a known number of devices"),
    ("accuracy_cost", "Accuracy against cost", accuracy_against_cost,
     "no run has a cost: set a price, such as machine.usd_per_hour=0.5"),
)  # fmt: skip
