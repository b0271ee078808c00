"""Colours and style of all figures. Matplotlib is imported only to draw."""

import io
import logging
import warnings
from typing import Dict, Iterable, NamedTuple

# The palette of Okabe and Ito, distinct for colour-blind readers; a lighter blue for dark pages
COLOURS = BLUE, ORANGE, GREEN, VERMILION, PINK, SKY = ("#2f84c6", "#e69f00", "#009e73", "#d55e00", "#cc79a7", "#56b4e9")
GREY, LIGHT = "#8c959f", "#c4cad1"  # of references: no exchange, a plain one, all points
# Back ends and exchanges have the same colour in each figure. The first words that a label has decide
OF_BACKEND = {
    "no exchange": LIGHT, "double buffering, fp16": GREEN, "double buffering": ORANGE, "after backward, fp16": SKY,
    "after backward": GREY, "fp16": SKY, "overlapped": BLUE, "2 servers per worker": PINK, "servers 2x": PINK,
    "1 server per worker": VERMILION, "servers 1x": VERMILION, "1 server": ORANGE, "servers 1": ORANGE,
    "servers 0": GREY, "distributedtrainer": SKY, "horovod": BLUE, "dist_device_sync": ORANGE,
    "parameter_server": ORANGE, "nccl": GREEN, "kvstore": GREY, "local": GREY, "device": VERMILION,
}  # fmt: skip
INK = "#24292f"  # text and frame; in an SVG it becomes the page's text colour

STYLE = {
    "font.family": ["DejaVu Sans", "Verdana", "Noto Sans CJK SC", "sans-serif"],
    "font.size": 10,
    "text.color": INK,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.prop_cycle": f"cycler('color', {COLOURS})",
    "xtick.color": INK,
    "ytick.color": INK,
    "grid.color": INK,
    "grid.alpha": 0.15,
    "legend.frameon": False,
    "svg.fonttype": "none",
}


def colours(labels: Iterable[str]) -> Dict[str, str]:
    """Return the colour of each series: that of its back end or exchange, else one that no other series has."""
    fixed: Dict[str, str] = {}
    for label in labels:
        colour = next((OF_BACKEND[words] for words in OF_BACKEND if words in label.lower().replace(":", "")), None)
        fixed[label] = "" if colour is None or colour in fixed.values() else colour
    free = [colour for colour in (*COLOURS, GREY, LIGHT, INK) if colour not in fixed.values()]
    numbers = {label: number for number, label in enumerate(label for label in fixed if not fixed[label])}
    return {label: colour or free[numbers[label] % len(free)] for label, colour in fixed.items()}


class Drawn(NamedTuple):
    """A figure as PNG and SVG."""

    name: str  # of the file, without suffix
    title: str
    caption: str
    png: bytes
    svg: str


def as_png(figure, dpi: int = 150) -> bytes:
    """Render a Matplotlib figure as PNG."""
    png = io.BytesIO()
    figure.savefig(png, format="png", dpi=dpi, facecolor="white")
    return png.getvalue()


def finished(name: str, title: str, caption: str, figure) -> Drawn:
    """Render a Matplotlib figure as PNG, and as SVG for a page."""
    import matplotlib

    svg = io.StringIO()
    # Unique ids, because all figures are in one page
    with matplotlib.rc_context({"svg.hashsalt": name}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font")  # a name of a class, which the page has as text
        png = as_png(figure)
        figure.savefig(svg, format="svg", transparent=True, metadata={"Date": None})
    text = svg.getvalue()
    return Drawn(name, title, caption, png, text[text.index("<svg") :].replace(INK, "currentColor"))


def axes(width: float = 9.0, height: float = 4.4, columns: int = 1, shared: bool = True):
    """Return a figure of width x height inches and its axes; shared: columns share their y axis."""
    from matplotlib.figure import Figure

    logging.getLogger("matplotlib").setLevel(logging.ERROR)  # it reports every font of STYLE that is not installed
    figure = Figure((width, height), layout="constrained")
    return figure, figure.subplots(1, columns, sharey=columns > 1 and shared)
