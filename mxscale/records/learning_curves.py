"""The learning curves of one run as a figure: loss, top-1 accuracy and learning rate by epoch."""

from importlib.util import find_spec
from typing import List, Optional, Tuple

from mxscale.rendering import canvas
from mxscale.rendering.canvas import COLOURS
from mxscale.rundir.directory import RunDir
from mxscale.util.atomic_files import replacing

FILE = "learning-curves.png"
# title, unit, (metric, label, colour) of each line
PANELS = (
    ("loss", "nats", (("train/loss", "training", COLOURS[0]), ("val/loss", "validation", COLOURS[3]))),
    ("top-1", "%", (("train/top1", "training", COLOURS[0]), ("val/top1", "validation", COLOURS[3]))),
    ("learning rate", "", (("lr", "", COLOURS[2]),)),
)
DPI = 100  # 1,040 pixels wide: a description in MLflow shows a figure in its own size
MARKED = 30  # lines with fewer points show each of them
WIDE = 30  # largest over smallest loss, from which on its axis is logarithmic


def save(run: RunDir) -> Optional[str]:
    """Write the figure to the run directory if the run has metrics; return why it could not be drawn, or None.

    Images leave out Matplotlib; `mxscale sync` from a checkout then draws and sends the figure.
    """
    if find_spec("matplotlib") is None:
        return None
    try:
        history, sizes = run.history(), run.plan().sizes
        if history and sizes:
            content = draw(history, sizes.steps_per_epoch)
            with replacing(run.path / FILE) as new, open(new, "wb") as file:
                file.write(content)
    except Exception as error:  # a figure is no reason for a run to fail
        return f"no learning curves: {type(error).__name__}: {error}"
    return None


def draw(history: List[dict], steps_per_epoch: int) -> bytes:
    """Return the figure as PNG; `history` is that of RunDir.history."""
    import matplotlib

    with matplotlib.rc_context(canvas.STYLE):
        figure, panels = canvas.axes(10.4, 3.4, len(PANELS), shared=False)
        for on, (title, unit, lines) in zip(panels, PANELS):
            for metric, label, colour in lines:
                epochs, values = points(history, metric, steps_per_epoch)
                marker = "o" if len(epochs) < MARKED else None
                on.plot(epochs, values, marker=marker, ms=3.5, lw=1.5, color=colour, label=label)
            on.set_title(f"{title}, {unit}" if unit else title, fontsize=10)
            on.set_xlabel("epoch")
            on.grid()
        losses = [value for line in panels[0].lines for value in line.get_ydata() if value > 0]
        if losses and max(losses) > WIDE * min(losses):
            panels[0].set_yscale("log")
        panels[0].legend(fontsize=9)
        return canvas.as_png(figure, DPI)


def points(history: List[dict], metric: str, steps_per_epoch: int) -> Tuple[List[float], List[float]]:
    """Return the epochs and values of a metric."""
    found = [(line["step"] / steps_per_epoch, line["metrics"][metric]) for line in history if metric in line["metrics"]]
    return [epoch for epoch, _ in found], [value for _, value in found]
