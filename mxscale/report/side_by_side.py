"""Two runs side by side: settings, environment, figures, curves."""

from pathlib import Path
from typing import Callable, Dict, NamedTuple, Sequence

from mxscale.config.schema import flatten
from mxscale.records import comparison
from mxscale.records.recorded import Recorded
from mxscale.rendering import page
from mxscale.rendering.canvas import COLOURS, STYLE, Drawn, axes, finished
from mxscale.rundir.directory import RunDir
from mxscale.tracking import history
from mxscale.tracking.history import Curve, Store
from mxscale.util import text_table
from mxscale.util.errors import ConfigError


class Side(NamedTuple):
    """One of two compared runs."""

    run: Recorded
    facts: Dict[str, object]  # environment.json, flattened
    curves: Dict[str, Curve]


def write(store: Callable[[str], Store], names: Sequence, folder: Path) -> str:
    """Write compare.html, compare.md and a PNG of each curve to `folder`.

    Args:
        store: Opens the MLflow store for the given setting; not called for run directories.
        names: Two run ids of MLflow, or run directories.
        folder: Created if missing.

    Returns:
        The tables, for the terminal.

    Raises:
        ConfigError: A run is unknown or not finished.
    """
    if len(names) != 2 or not all(isinstance(name, str) and name for name in names):
        raise ConfigError(f"report.compare={names}: expected two run ids of MLflow, or run directories: [A,B]")
    a, b = (_side(store, name) for name in names)
    parts = [
        ("Settings", comparison.differences(*(comparison.settings(side.run.current) for side in (a, b)))),
        (
            "Environment",
            comparison.differences(*(comparison.environment(side.run.tags, side.facts) for side in (a, b))),
        ),
        ("Data and weights", comparison.differences(comparison.outcome(a.run.tags), comparison.outcome(b.run.tags))),
    ]
    found = comparison.metrics(a.run.metrics, b.run.metrics)
    drawn = [_curve(name, a, b) for name in comparison.CURVES if name in a.curves or name in b.curves]
    text = in_markdown(a.run, b.run, parts, found)
    pictures = "".join(f"\n![{figure.title}]({figure.name}.png)\n" for figure in drawn)
    html = page.render(
        Path(__file__).with_name("compare.html"), a=a.run, b=b.run, parts=parts, metrics=found, figures=drawn
    )
    page.save({"compare.md": text + pictures, "compare.html": html}, drawn, folder, "report.output")
    return text


def _side(store: Callable[[str], Store], name: str) -> Side:
    source = f"report.compare={name}"
    run = RunDir(name)
    if run.exists:
        recorded = history.finished(history.of_directory(run), source)
        facts = flatten(run.read("environment.json") or {})
        return Side(recorded, facts, history.curves_of(run, comparison.CURVES))
    opened = store(source)
    recorded = history.finished(opened.run(name), source)
    facts = flatten(opened.file(recorded.id, "environment.json"))
    return Side(recorded, facts, opened.curves(recorded.id, comparison.CURVES))


def _curve(metric: str, a: Side, b: Side) -> Drawn:
    """Draw one metric of both runs by step."""
    import matplotlib

    with matplotlib.rc_context(STYLE):
        figure, on = axes(6.4, 3.4)
        for name, side, colour, style in (("A", a, COLOURS[0], "-"), ("B", b, COLOURS[3], (0, (5, 2)))):
            points = side.curves.get(metric)
            if not points:
                continue
            marker = "o" if len(points) < 30 else None
            on.plot([x for x, _ in points], [y for _, y in points], marker=marker, ms=3.5, lw=1.5, label=name,
                    color=colour, ls=style)  # fmt: skip
        on.set_xlabel("step")
        on.set_ylabel(metric)
        on.grid()
        on.legend(fontsize=9)
        return finished(metric.replace("/", "_"), metric, "", figure)


def in_markdown(a: Recorded, b: Recorded, parts, metrics) -> str:
    texts = [f"# Two runs\n\nA: {a.name} ({a.id})\n\nB: {b.name} ({b.id})\n"]
    for title, rows in parts:
        table = text_table.markdown(("key", "A", "B"), rows, left=3) if rows else "No differences."
        texts.append(f"## {title}\n\n{table}")
    texts.append(f"## Metrics\n\n{text_table.markdown(('metric', 'A', 'B'), metrics)}")
    return "\n".join(text.rstrip() + "\n" for text in texts)
