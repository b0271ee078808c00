"""Tables of published throughputs that tests write, and what the product makes of them."""

import csv

from mxscale.perfmodel.published import rows as published
from mxscale.perfmodel.published import score

ROW = {
    "source": "ours",
    "framework": "MXNet",
    "model": "resnet50",
    "gpu": "V100",
    "nodes": "1",
    "gpus": "1",
    "comm": "horovod/NCCL",
    "precision": "fp32",
    "batch_per_gpu": "64",
    "network_gbps": "",
    "img_per_s": "350",
    "flag": "",
    "note": "",
    "details": "",
}


def write_points(folder, *rows, columns=tuple(ROW)) -> str:
    """Write a table of rows that differ from ROW in the given cells, such as dict(gpus=8); return its path."""
    path = folder / "points.csv"
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, columns, extrasaction="ignore")
        writer.writeheader()
        writer.writerows({**ROW, **{key: str(value) for key, value in row.items()}} for row in rows)
    return str(path)


def series(path):
    """Return (devices of the base, devices, batch) of each pair, and the lines of the rows without a base."""
    pairs, alone = published.pairs(published.read(path)[0])
    return [(base.devices, point.devices, point.batch) for base, point in pairs], [row.line for row in alone]


def predicted(path):
    """Return the predicted images/s of each pair."""
    pairs, _ = published.pairs(published.read(path)[0])
    return [row["predicted"] for row in score.predict(pairs)]
