"""The page of a replay: its panels, the published numbers beside one's own in the same form, and the claims."""

from pathlib import Path
from typing import Dict, List, NamedTuple, Sequence, Tuple

from mxscale.records import claims
from mxscale.records.claims import Outcome
from mxscale.rendering import canvas, page
from mxscale.rendering.canvas import COLOURS, Drawn
from mxscale.replay.entry import BARS, TABLE, Cell, Panel, Replay
from mxscale.replay.results import Point, as_csv
from mxscale.report.claims import here as values_of_claim
from mxscale.report.claims import state as state_of_claim

TEMPLATE = Path(__file__).parent / "replay.html"
ROOM = 0.82  # of the distance between two places, for bars


class Numbers(NamedTuple):
    """The numbers of a panel."""

    panel: Panel
    published: List[Point]
    own: List[Point]


class Open(NamedTuple):
    """A cell without a result."""

    cell: Cell
    why: str


class Content(NamedTuple):
    """What the page of a replay shows."""

    replay: Replay
    scale: str
    about: str
    command: str
    numbers: List[Numbers]
    open: List[Open]
    outcomes: List[Outcome]
    runs: List[Tuple[str, str]]  # (cell, its run)


def write(content: Content, folder: Path) -> Path:
    """Write NAME.html, NAME.csv and a PNG of each panel; return the path of the page."""
    drawn = figures(content)
    name = content.replay.name
    texts = {f"{name}.html": page.render(TEMPLATE, book=None, pages=[described(content, drawn)], title=name),
             f"{name}.csv": as_csv(content.replay, content.numbers)}  # fmt: skip
    page.save(texts, drawn, folder)
    return folder / f"{name}.html"


def write_book(contents: Sequence[Content], folder: Path) -> Path:
    """Write index.html with the pages of all replays; return its path."""
    pages = [described(content, figures(content)) for content in contents]
    states = [state(content) for content in contents]
    text = page.render(TEMPLATE, book=list(zip(pages, states)), pages=pages, title="Replays")
    page.save({"index.html": text}, (), folder)
    return folder / "index.html"


def state(content: Content) -> str:
    """Return how many cells have a result, such as `5 of 6 runs`."""
    cells = len([cell for cell in content.replay.grid(content.scale).cells if cell.series is not None])
    return f"{cells - len(content.open)} of {cells} runs"


def described(content: Content, drawn: Sequence[Drawn]) -> Dict:
    """Return what the template shows of a replay."""
    return {
        "content": content, "figures": drawn, "state": state(content),
        "tables": [(numbers.panel.axis, rows(numbers)) for numbers in content.numbers],
        "claims": [
            (one.row, claims.published(one.row), state_of_claim(one), values_of_claim(one)) for one in content.outcomes
        ],
    }  # fmt: skip


def rows(numbers: Numbers) -> List[Tuple[str, str, str, str]]:
    """Return (series, x, published, here) of a panel; the published place and one's own are rarely the same."""
    keys = dict.fromkeys((point.series, point.x) for point in (*numbers.published, *numbers.own))
    theirs, ours = ({(p.series, p.x): shown(p.value) for p in points} for points in (numbers.published, numbers.own))
    return [(series, x, theirs.get((series, x), ""), ours.get((series, x), "")) for series, x in keys]


def shown(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def figures(content: Content) -> List[Drawn]:
    """Draw the panels that have a number."""
    import matplotlib

    drawn = []
    series = dict.fromkeys(point.series for each in content.numbers for point in (*each.published, *each.own))
    colours = {name: COLOURS[number % len(COLOURS)] for number, name in enumerate(series)}
    with matplotlib.rc_context(canvas.STYLE):
        for number, numbers in enumerate(content.numbers, 1):
            if numbers.panel.form != TABLE and (numbers.published or numbers.own):
                name = f"{content.replay.name}-{number}"
                figure = panel(numbers, content, colours)
                drawn.append(canvas.finished(name, numbers.panel.axis, caption(numbers), figure))
    return drawn


def caption(numbers: Numbers) -> str:
    notes = dict.fromkeys(f"{point.source}{f' ({point.note})' if point.note else ''}" for point in numbers.published)
    return f"Published: {'; '.join(notes)}." if notes else "Not published as numbers."


def panel(numbers: Numbers, content: Content, colours: Dict[str, str]):
    """Return a Matplotlib figure: the published numbers on the left, one's own on the right, in the same form."""
    figure, (left, right) = canvas.axes(11.0, 4.2, 2, shared=_comparable(numbers))
    sides = ((left, numbers.published, f"published: {content.replay.work}"), (right, numbers.own, "here"))
    for on, points, title in sides:
        on.set_title(title, fontsize=11)
        on.grid(axis="y")
        if not points:
            text = "not published\nas numbers" if on is left else "no run yet"
            on.text(0.5, 0.5, text, ha="center", va="center", transform=on.transAxes, alpha=0.7)
            on.set_xticks([])
        elif numbers.panel.form == BARS:
            _bars(on, points, colours)
            if numbers.panel.logarithmic:  # limits of its own: by default it would begin just below the smallest bar
                values = [point.value for point in points]
                on.set_yscale("log")
                on.set_ylim(min(values) / 3, max(values) * 2)
        else:
            _lines(on, points, colours, numbers.panel.logarithmic)
        on.set_xlabel(content.replay.x)
    left.set_ylabel(numbers.panel.axis)
    right.tick_params(labelleft=True)
    handles = {label: handle for on in (left, right) for handle, label in zip(*on.get_legend_handles_labels())}
    if handles:
        figure.legend(handles.values(), handles, loc="outside lower center", ncols=min(4, len(handles)), fontsize=9)
    return figure


def _comparable(numbers: Numbers) -> bool:
    """Return whether both sides have one scale: percentages have, rates of other machines and networks differ."""
    return "%" in numbers.panel.axis or "times" in numbers.panel.axis


def _bars(on, points: Sequence[Point], colours: Dict[str, str]) -> None:
    places = {x: number for number, x in enumerate(dict.fromkeys(point.x for point in points))}
    series = list(dict.fromkeys(point.series for point in points))
    width = ROOM / len(series)
    for number, name in enumerate(series):
        mine = [point for point in points if point.series == name]
        x = [places[point.x] + (number - (len(series) - 1) / 2) * width for point in mine]
        bars = on.bar(x, [point.value for point in mine], 0.94 * width, color=colours[name], label=name, alpha=0.9)
        on.bar_label(bars, [shown(point.value) for point in mine], fontsize=8 if len(points) < 9 else 6.5, padding=1)
    on.set_xticks(range(len(places)), [x.replace(": ", ":\n") for x in places], fontsize=9 if len(places) < 5 else 7.5)
    if len(places) > 4:
        on.tick_params(axis="x", labelrotation=20)
    margin = max(0.0, (2 - len(places)) / 2)  # so that a single bar does not fill the figure
    on.set_xlim(-0.5 - margin, len(places) - 0.5 + margin)
    on.margins(y=0.12)


def _lines(on, points: Sequence[Point], colours: Dict[str, str], logarithmic: bool) -> None:
    for name in dict.fromkeys(point.series for point in points):
        mine = sorted((float(point.x), point.value) for point in points if point.series == name)
        on.plot(*zip(*mine), "o-", color=colours[name], label=name, lw=1.6, ms=5)
    if logarithmic:
        on.set_xscale("log", base=2)
        on.set_yscale("log")
    else:
        on.set_xticks(sorted({float(point.x) for point in points}))
        on.set_ylim(bottom=0)
