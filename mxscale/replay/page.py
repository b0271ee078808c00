"""The page of a replay: published numbers beside those of runs here in the same form, and the claims."""

from pathlib import Path
from typing import Dict, List, Sequence, Tuple

from mxscale.records import claims as records
from mxscale.rendering import canvas, page
from mxscale.rendering.canvas import Drawn
from mxscale.replay.entry import HERE, METRICS, PUBLISHED, RATIO, Panel
from mxscale.replay.results import Content, Point
from mxscale.report import claims as claim_texts
from mxscale.util import csv_tables

TEMPLATE = Path(__file__).parent / "replay.html"
GAP = 0.8  # between two places, in bars
DWARFED = 20  # times the smallest bar: from here on the axis is logarithmic
HATCH = "////"  # of published bars


def write(content: Content, folder: Path) -> Path:
    """Write NAME.html, NAME.csv and a PNG of each panel; return the path of the page."""
    name, drawn = content.replay.name, figures(content)
    rows = [("replay", *Point._fields), *((name, *point) for point in content.points)]
    tables = [(panel.axis, table(content, panel)) for panel in content.replay.panels]
    claims = [(one.row, claim_texts.state(one), claim_texts.here(one)) for one in content.outcomes]
    html = page.render(TEMPLATE, content=content, figures=drawn, tables=tables, claims=claims)
    page.save({f"{name}.html": html, f"{name}.csv": csv_tables.text(rows)}, drawn, folder)
    return folder / f"{name}.html"


def table(content: Content, panel: Panel) -> List[Tuple[str, str, str, str]]:
    """Return (series, x, published, here) of a panel; a published place is rarely one of the runs here."""
    values = {(point.series, point.x, point.by): described(point) for point in content.of(panel)}
    places = dict.fromkeys((series, x) for series, x, _ in values)
    return [(*place, values.get((*place, PUBLISHED), ""), values.get((*place, HERE), "")) for place in places]


def described(point: Point) -> str:
    """Return `median (low to high, n = runs)`, and the absolute value of a relative one."""
    text = shown(point.value)
    if point.by == HERE:
        text += f" ({shown(point.low)} to {shown(point.high)}, n = {len(point.source.split())})"
    return text if point.absolute is None else f"{text}: {shown(point.absolute)}"


def shown(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 999.5 else f"{value:.3g}"


def figures(content: Content) -> List[Drawn]:
    """Draw the panels that have a number."""
    import matplotlib

    drawn, name = [], content.replay.name
    colours = canvas.colours(dict.fromkeys(point.series for point in content.points))
    with matplotlib.rc_context(canvas.STYLE):
        for number, panel in enumerate(content.replay.panels, 1):
            points = content.of(panel)
            if points:
                figure = bars(panel, points, colours)
                drawn.append(canvas.finished(f"{name}-{number}", panel.axis, caption(content, panel), figure))
    return drawn


def caption(content: Content, panel: Panel) -> str:
    """Return what the bars are, where and when the runs were, and the sources of the published numbers."""
    points, parts = content.of(panel), []
    runs = [run for of_trial in content.runs.values() for run in of_trial]
    if runs and any(point.by == HERE for point in points):
        rounds = max(len(point.source.split()) for point in points if point.by == HERE)
        bar = f"medians of {rounds} runs with minimum and maximum" if rounds > 1 else "one run each"
        parts.append(f"Here: {records.hardware(runs)}, {records.date_of(runs)}; {bar}.")
    if panel.way == RATIO:
        parts.append(f"Bars of each side: {panel.reference.text} = 1. Labels: {METRICS[panel.metric][0]}.")
    cited = [f"{point.source}{f' ({point.note})' if point.note else ''}" for point in points if point.by == PUBLISHED]
    parts.append(f"Published: {content.replay.work}, {'; '.join(dict.fromkeys(cited))}." if cited else "The work "
                 "printed no such numbers.")  # fmt: skip
    return " ".join(parts)


def bars(panel: Panel, points: Sequence[Point], colours: Dict[str, str]):
    """Return a Matplotlib figure with a group of bars for each place; published ones are lighter and hatched."""
    from matplotlib.patches import Patch

    places: Dict[str, List[Point]] = {}
    for point in points:
        places.setdefault(point.x, []).append(point)
    figure, on = canvas.axes(max(6.4, min(10.0, 2.4 + 0.75 * (len(points) + len(places)))), 4.0)
    at, middles = 0.0, []
    for group in places.values():
        middles.append(at + (len(group) - 1) / 2)
        for point in group:
            _bar(on, at, point, colours[point.series], panel.way == RATIO)
            at += 1
        at += GAP
    on.set_xticks(middles, [_label(x, group) for x, group in places.items()])
    on.set_xlim(-1, max(at - GAP, 3))
    on.set_ylabel(panel.axis)
    on.grid(axis="y")
    on.margins(y=0.14)
    sizes = [abs(point.value) for point in points if point.value]
    if panel.way != RATIO and sizes and min(sizes) * DWARFED < max(sizes):
        on.set_yscale("log")
    if panel.way == RATIO:
        on.axhline(1, color=canvas.INK, lw=0.8, ls=":")
    series = dict.fromkeys(point.series for point in points)
    handles = [Patch(color=colours[name], label=name) for name in series]
    if any(point.by == PUBLISHED for point in points):
        handles.append(Patch(facecolor="none", edgecolor=canvas.INK, hatch=HATCH, label="published"))
    figure.legend(handles=handles, loc="outside lower center", ncols=min(4, len(handles)))
    return figure


def _bar(on, at: float, point: Point, colour: str, ratio: bool) -> None:
    """Draw a bar, its range, and its label, which is the absolute value if there is one."""
    if point.by == PUBLISHED:
        on.bar(at, point.value, 0.9, color=(colour, 0.3), edgecolor=colour, hatch=HATCH, lw=0.8)
    else:
        ends = [[point.value - point.low], [point.high - point.value]]
        on.bar(at, point.value, 0.9, color=colour, yerr=ends, ecolor=canvas.INK, capsize=3)
    top = max(point.value, point.high or 0, 0)
    label = shown(point.absolute) if point.absolute is not None else shown(point.value) + "×" * ratio
    on.annotate(label, (at, top), (0, 3), textcoords="offset points", ha="center", fontsize=9)


def _label(x: str, group: Sequence[Point]) -> str:
    """Return the text of a place, in lines; a place of one side says which."""
    sides = {point.by for point in group}
    return "\n".join([*x.replace(": ", ":\n").split(", "), *(sides if len(sides) == 1 else ())])
