"""The page of a replay: published numbers beside those of runs here in the same form, and the claims."""

from pathlib import Path
from typing import Dict, List, Sequence, Tuple

from mxscale.rendering import canvas, page
from mxscale.rendering.canvas import COLOURS, Drawn
from mxscale.replay.entry import Panel, Replay
from mxscale.replay.results import HERE, PUBLISHED, Content, Point
from mxscale.report import claims as claim_texts
from mxscale.util import csv_tables

TEMPLATE = Path(__file__).parent / "replay.html"
ROOM = 0.82  # of the distance between two places, for bars


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
    values = {(point.series, point.x, point.by): shown(point.value) for point in content.points
              if point.metric == panel.name}  # fmt: skip
    places = dict.fromkeys((series, x) for series, x, _ in values)
    return [(*place, values.get((*place, PUBLISHED), ""), values.get((*place, HERE), "")) for place in places]


def shown(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def figures(content: Content) -> List[Drawn]:
    """Draw the panels that have a number."""
    import matplotlib

    drawn, replay = [], content.replay
    series = dict.fromkeys(point.series for point in content.points)
    colours = {name: COLOURS[number % len(COLOURS)] for number, name in enumerate(series)}
    with matplotlib.rc_context(canvas.STYLE):
        for number, panel in enumerate(replay.panels, 1):
            published, here = content.of(panel, PUBLISHED), content.of(panel, HERE)
            if published or here:
                figure = side_by_side(panel, replay, published, here, colours)
                drawn.append(canvas.finished(f"{replay.name}-{number}", panel.axis, caption(published), figure))
    return drawn


def caption(published: Sequence[Point]) -> str:
    notes = dict.fromkeys(f"{point.source}{f' ({point.note})' if point.note else ''}" for point in published)
    return f"Published: {'; '.join(notes)}." if notes else "Not published as numbers."


def side_by_side(panel: Panel, replay: Replay, published: List[Point], here: List[Point], colours: Dict[str, str]):
    """Return a Matplotlib figure: the published numbers on the left, those from here on the right."""
    comparable = "%" in panel.axis or "times" in panel.axis  # rates of other machines and networks have another scale
    figure, (left, right) = canvas.axes(11.0, 4.2, 2, shared=comparable)
    for on, points, title in ((left, published, f"published: {replay.work}"), (right, here, "here")):
        on.set_title(title, fontsize=11)
        on.grid(axis="y")
        if not points:
            text = "not published\nas numbers" if on is left else "no run yet"
            on.text(0.5, 0.5, text, ha="center", va="center", transform=on.transAxes, alpha=0.7)
            on.set_xticks([])
        else:
            _bars(on, points, colours)
        on.set_xlabel(replay.x)
    left.set_ylabel(panel.axis)
    right.tick_params(labelleft=True)
    handles = {label: handle for on in (left, right) for handle, label in zip(*on.get_legend_handles_labels())}
    if handles:
        figure.legend(handles.values(), handles, loc="outside lower center", ncols=min(4, len(handles)), fontsize=9)
    return figure


def _bars(on, points: Sequence[Point], colours: Dict[str, str]) -> None:
    places = {x: number for number, x in enumerate(dict.fromkeys(point.x for point in points))}
    series = list(dict.fromkeys(point.series for point in points))
    width = ROOM / len(series)
    for number, name in enumerate(series):
        ours = [point for point in points if point.series == name]
        x = [places[point.x] + (number - (len(series) - 1) / 2) * width for point in ours]
        bars = on.bar(x, [point.value for point in ours], 0.94 * width, color=colours[name], label=name, alpha=0.9)
        on.bar_label(bars, [shown(point.value) for point in ours], fontsize=8 if len(points) < 9 else 6.5, padding=1)
    on.set_xticks(range(len(places)), [x.replace(": ", ":\n") for x in places], fontsize=9 if len(places) < 5 else 7.5)
    if len(places) > 4:
        on.tick_params(axis="x", labelrotation=20)
    margin = max(0.0, (2 - len(places)) / 2)  # so that a single bar does not fill the figure
    on.set_xlim(-0.5 - margin, len(places) - 0.5 + margin)
    on.margins(y=0.12)
