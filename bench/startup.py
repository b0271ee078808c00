"""Time from `python train.py` to the end of the first step, by part.

    python bench/startup.py [--quick]

Parts: compose (imports of the parent and Hydra), preparation (a child: MXNet's import, data, network), start
(horovodrun, interpreter), imports (of the rank), communicator, ready (data and network of the rank), first step. The
data are packed beforehand; the very first run packs them in the preparation.
"""

import measure


def parts(ranks: int) -> dict:
    """Return the seconds of each part of one start."""
    ended = measure.train(f"launch.ranks={ranks}", "max_steps=1", "log_every=1", "tracking=none", "name=startup")
    stamps, began = ended["status"]["stamps"], ended["status"]["stamps"]["began"]
    rank = ended["run"].read("ranks/0.json")["stamps"]
    lines = list(ended["run"].lines())
    ready = lines[0]["time_ms"] / 1000
    stepped = next(line for line in lines if line["step"] == 1)["time_ms"] / 1000
    prepared = began + stamps["compose"] + stamps["preparation"]
    return {
        "compose": stamps["compose"],
        "preparation": stamps["preparation"],
        "start": rank["started"] - prepared,
        "imports": rank["imported"] - rank["started"],
        "communicator": rank["communicator"] - rank["imported"],
        "ready": ready - rank["communicator"],
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
