"""Run directories with one damaged file, given to the verbs that read them."""

import hashlib
import json
import shutil
from functools import partial
from pathlib import Path

import yaml

from .case import Case, choice
from .damage import BYTES, NODES, canary, damaged_bytes, damaged_value, place

TEXT = ("", "{", "null", "5", "[1, 2]", '"x"', "{}", '{"a": {"b": NaN}}', "\0\0\0", "\xff\xfe")
TASKS = ("resume", "resume", "resume", "finetune", "rerun", "export", "sibling")
# Files that none of the tasks need
OPTIONAL = ("params.json", "tracking.json", "summary.json", "overrides.yaml")


def make(draw, folder: Path, command: bool, shared: Path) -> Case:
    (original,) = (shared / "runs" / "train").iterdir()
    run = folder / "runs" / "train" / original.name
    shutil.copytree(original, run)
    task = choice(draw, TASKS)
    if task == "resume":
        interrupted(run)
    files = sorted(path for path in run.rglob("*") if path.is_file() and path.suffix != ".log" and path.name != "lock")
    path = choice(draw, files)
    how = choice(draw, ("value", "value", "value", "text", "canary", "canary", *BYTES, *NODES))
    if how == "canary":  # of a checkpoint most often, and with its digest
        path = choice(draw, [each for each in files if each.parent.parent.name == "checkpoints"])
        what = canary(draw, path if draw.random() < 0.7 else path.with_name("trainer"))
        seal(path.parent)
    else:
        what = damage(draw, path, how)
    base = ["comm=local", "launch.ranks=1", "launch.threads=1", "tracking=none", f"data.cache={shared}/cache"]
    argv = {
        "resume": ["train", f"resume={run}", "max_steps=4", "tracking=none"],
        "sibling": ["train", *base, "max_steps=1", "data.classes=[0,1]", "data.train_per_class=8", "batch.per_device=8",
                    f"runs={folder}/runs", "resume=auto"],
        "finetune": ["finetune", *base, f"model.pretrained={run}", "max_steps=1", "data.classes=[0,1]",
                     "data.train_per_class=8", "batch.per_device=8", "data.val_share=0.2", f"runs={folder}/runs"],
        "rerun": ["train", f"rerun={run}", "tracking=none", f"runs={folder}/runs", f"data.cache={shared}/cache"],
        "export": ["export", str(run), "format=safetensors", f"output={folder}/runs/out.safetensors"],
    }[task]  # fmt: skip
    return Case(
        f"{task}, {path.relative_to(run)}: {what}",
        argv,
        (str(run), str(path)),
        verify=partial(finished, folder) if task != "export" else lambda: None,
        failure="not finite|nan" if path.name in ("config.yaml", "state.json") else None,
    )


def interrupted(run: Path) -> None:
    """Make a finished run one that was interrupted after its checkpoint."""
    for name, changes in (("status.json", {"state": "KILLED", "exit": 75}), ("ranks/0.json", {"exit": 75})):
        values = json.loads((run / name).read_text())
        (run / name).write_text(json.dumps({**values, **changes}))


def seal(checkpoint: Path) -> None:
    """Write MANIFEST for the files that a checkpoint has."""
    files = [each for each in sorted(checkpoint.iterdir()) if each.name != "MANIFEST"]
    lines = [f"{hashlib.sha256(each.read_bytes()).hexdigest()}  {each.name}\n" for each in files]
    (checkpoint / "MANIFEST").write_text("".join(lines))


def damage(draw, path: Path, how: str) -> str:
    """Damage a file; return what was done."""
    if how in NODES:
        place(path, how)
        return how
    content = path.read_bytes()
    if how == "value" and path.suffix in (".json", ".yaml", ".jsonl"):
        if path.suffix == ".yaml":
            values, what = damaged_value(draw, yaml.safe_load(content))
            path.write_text(yaml.safe_dump(values, sort_keys=False))
        elif path.suffix == ".json":
            values, what = damaged_value(draw, json.loads(content))
            path.write_text(json.dumps(values))
        else:
            lines = content.decode().splitlines()
            at = int(draw.integers(len(lines)))
            values, what = damaged_value(draw, json.loads(lines[at]))
            path.write_text("\n".join([*lines[:at], json.dumps(values), *lines[at + 1 :]]) + "\n")
        return what
    if how in ("value", "text"):
        text = choice(draw, TEXT)
        path.write_bytes(text.encode("latin-1"))
        return repr(text)
    path.write_bytes(damaged_bytes(draw, content, how))
    return how


def finished(folder: Path) -> None:
    """Assert that the newest run has finished with a metrics file and a valid checkpoint."""
    from mxscale.rundir import checkpoints
    from mxscale.rundir.directory import RunDir

    newest = max((path.parent for path in (folder / "runs").glob("*/*/config.yaml")), key=lambda p: p.stat().st_mtime)
    run = RunDir(newest)
    assert run.state == "FINISHED", f"exit status 0, but the state is {run.state}"
    assert checkpoints.newest(run.checkpoints), "no valid checkpoint"
    assert list(run.lines()), "no metrics"
