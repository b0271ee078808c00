"""Tracking addresses with a password, which reach no output and no file and end in one line or a finished run."""

import os
from functools import partial
from pathlib import Path

from . import runs
from .case import MARKER, Case, choice, nothing
from .in_process import SMALL

SCHEMES = ("http", "https", "HTTP", "postgresql", "mysql+pymysql", "mssql", "sqlite", "databricks", "file", "s3", "htp",
           "")  # fmt: skip
USERS = ("", f"bob:{MARKER}@", f"{MARKER}@", f":{MARKER}@", f"bob:a/{MARKER}@", f"bob:p@{MARKER}@", f"{MARKER}:@",
         f"b%40b:{MARKER}%2F@", f"bob:my {MARKER}@", f"bob:{MARKER}?x@", f"b\xe9:{MARKER}@")  # fmt: skip
HOSTS = ("127.0.0.1:1", "127.0.0.1", "[::1]:1", "127.0.0.1:99999", "127.0.0.1:x", "", "nohost.invalid", "a b", "..",
         "[::1")  # fmt: skip
PATHS = ("", "/", "/db", "/a@b", "/x.db", "//x.db", "/../y.db", "/\xe9.db", "/a b")
QUERIES = ("", "", f"?api_key={MARKER}", f"?token={MARKER}&a=b", f"?x=1&password={MARKER}", "#a",
           f"?X-Amz-Signature={MARKER}")  # fmt: skip


def make(draw, folder: Path, command: bool, shared: Path) -> Case:
    parts = (USERS, HOSTS, PATHS, QUERIES)
    scheme = choice(draw, SCHEMES)
    address = (f"{scheme}:" if scheme else "") + choice(draw, ("//", "//", "//", "///", "/", ""))
    address += "".join(choice(draw, each) for each in parts)
    if address.startswith("sqlite:///"):  # a file, whose name has no password
        address = address.replace("sqlite:///", f"sqlite:///{folder}/runs/").replace(MARKER, "x")
    base = [f"runs={folder}/runs", "tracking=mlflow", "tracking.timeout_s=1"]
    if draw.random() < 0.3:
        os.environ["MLFLOW_TRACKING_URI"] = address
    else:
        base.append("tracking.uri='{}'".format(address.replace("\\", "\\\\").replace("'", "\\'")))
    verb = choice(draw, ("report", "train"))
    argv = [verb, *base]
    if verb == "train":
        argv += [*SMALL, f"data.cache={shared}/cache"]
    else:
        argv.append(f"report.output={folder}/runs/report")
    return Case(
        f"{verb} {address}" + " (variable)" * ("MLFLOW_TRACKING_URI" in os.environ),
        argv,
        ("tracking.uri", scheme or "127", "report"),
        verify=partial(runs.finished, folder) if verb == "train" else nothing,
    )
