"""Histories of spot prices in each form, and their import."""

import json

from mxscale.cli import main
from mxscale.cost import spot

# Made up, in the form of `aws ec2 describe-spot-price-history`, whose rows are the newest first
ROWS = [
    ("us-east-1c", "p3.16xlarge", "Linux/UNIX", "30.000000", "2017-11-12T18:00:00.000Z"),
    ("us-east-1a", "p3.16xlarge", "Linux/UNIX", "12.000000", "2017-11-12T06:00:00.000Z"),
    ("us-east-1a", "p3.16xlarge", "Windows", "1.000000", "2017-11-12T05:00:00.000Z"),
    ("us-east-1c", "p3.16xlarge", "Linux/UNIX (Amazon VPC)", "9.000000", "2017-11-11T00:00:00.000Z"),
    ("us-east-1a", "p3.16xlarge", "Linux/UNIX", "8.000000", "2017-11-10T00:00:00.000Z"),
]


def as_json(rows):
    return json.dumps({"SpotPriceHistory": [dict(zip(spot.COLUMNS, row)) for row in rows]}, indent=4)


def as_text(rows):
    return "".join("\t".join((spot.TEXT, *row)) + "\n" for row in rows)


def as_csv(rows):
    return "\n".join(map(",".join, [spot.COLUMNS, *rows]))


FORMS = {"spot.json": as_json, "spot.txt": as_text, "spot.csv": as_csv}


def imported(folder, name="spot.json", rows=ROWS):
    folder.mkdir(exist_ok=True)
    (folder / f"given-{name}").write_text(FORMS[name](rows))
    assert main.main(["prices", f"runs={folder}", f"update={folder}/given-{name}"]) == 0
