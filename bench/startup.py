"""Time from `python train.py` to the end of the first step, by part.

    python bench/startup.py [--quick]

Parts: set-up (imports of the parent, Hydra, and the preparation, a child), ranks (horovodrun, imports, communicator,
data and network), first step. The data are packed beforehand; the very first run packs them in the preparation.
"""

import measure


def parts(ranks: int) -> dict:
    """Return the seconds of each part of one start."""
    ended = measure.train(f"launch.ranks={ranks}", "max_steps=1", "log_every=1", "tracking=none", "name=startup")
    run = ended["run"]
    began, prepared = run.attempts[0].started_ms / 1000, (run.path / "plan.json").stat().st_mtime
    ready, stepped = (next(line for line in run.lines() if line["step"] == step)["time_ms"] / 1000 for step in (0, 1))
    return {
        "set-up": prepared - began,
        "ranks": ready - prepared,
        "first step": stepped - ready,
        "total": stepped - began,
    }


def main() -> None:
    options = measure.arguments(__doc__.splitlines()[0], runs=(7, "starts for each number of ranks"))
    figures = {}
    parts(1)  # packs the data, fills the disk cache
    for ranks in (1, 2):
        starts = [parts(ranks) for _ in range(2 if options.quick else options.runs)]
        figures[f"ranks={ranks}"] = {name: measure.spread([start[name] for start in starts]) for name in starts[0]}
        print(f"{ranks} rank{'s' * (ranks > 1)}")
        for name, value in figures[f"ranks={ranks}"].items():
            print(f"  {name:13} {measure.show(value, '{:.2f}')} s", flush=True)
    measure.finish(figures)


if __name__ == "__main__":
    main()
