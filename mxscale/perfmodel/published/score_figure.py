"""The figure of `score`: predicted against published rates."""

from pathlib import Path
from typing import Dict

from mxscale.util.errors import ConfigError

BLUE, GREY, RED = "#1f5fa8", "#9a9a9a", "#b3412f"


def draw(found: Dict, path: str) -> None:
    """Draw published and predicted efficiency of each row, and the share of rows within an error.

    Raises:
        ConfigError: All rows are flagged.
        OSError: The file can't be written.
    """
    if not found["rows"]:
        raise ConfigError(f"figure={path}: all rows that can be predicted are flagged, so there is nothing to draw")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.8), layout="constrained")
    left, right = figure.subplots(1, 2)
    _efficiencies(left, found)
    _within(right, found)
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


def _efficiencies(axes, found: Dict) -> None:
    markers = "os^Dv<>pPX*hd"
    for index, source in enumerate(found["sources"]):
        rows = [row for row in found["rows"] if row["source"] == source]
        published = [100 * row["img_per_s"] / row["linear"] for row in rows]
        predicted = [100 * row["predicted"] / row["linear"] for row in rows]
        axes.plot(
            published, predicted, markers[index % len(markers)], ms=5, alpha=0.65, label=f"{source} ({len(rows)})"
        )
    low = min(100 * min(row["img_per_s"], row["predicted"]) / row["linear"] for row in found["rows"])
    ends = [max(low - 5, 0), 105]
    axes.plot(ends, ends, color=GREY, lw=1)
    axes.fill_between(ends, [0.9 * end for end in ends], [1.1 * end for end in ends], color=GREY, alpha=0.15, lw=0)
    axes.set(
        xlim=ends, ylim=ends, xlabel="published rate, % of linear scaling", ylabel="predicted rate, % of linear scaling"
    )
    axes.set_title("Predicted against published (band: 10 %)", fontsize=11)
    axes.legend(fontsize=8, frameon=False, loc="upper left")


def _within(axes, found: Dict) -> None:
    rows = found["rows"]
    for key, name, colour, values in (
        ("error", "model", BLUE, found["overall"]),
        ("linear_error", "linear scaling", RED, found["linear"]),
    ):
        errors = sorted(row[key] for row in rows)
        shares = [100 * (index + 1) / len(errors) for index in range(len(errors))]
        label = f"{name}: median {values['median']:.1f} %, mean {values['mean']:.1f} %"
        axes.step([0, *errors], [0, *shares], where="post", color=colour, label=label)
    axes.set(xlim=(0, 50), ylim=(0, 101), xlabel="absolute error, % of the published rate", ylabel="share of rows, %")
    axes.set_title("Rows within an error", fontsize=11)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=9, frameon=False, loc="lower right")
