"""A run on record that is run again: `rerun=ID`.  Found, compared with what is here now, and judged at the end.

All of it is taken from the record: the run directory where it is here, else the files that MLflow has of it.
A copy lies in the new run's directory, rerun/, so that what comes later (a resume, the verdict) asks nobody.
"""

import os
import shutil
import tempfile
from dataclasses import dataclass, field
from typing import Any, Dict, List, Optional

from mxscale.config.schema import Config, flatten, to_dict
from mxscale.config.signature import DATA_PATHS, UNSIGNED, within
from mxscale.config.sizes import unsaved
from mxscale.launcher.progress import say
from mxscale.records.recorded import is_forecast
from mxscale.rerun import differences, verdict
from mxscale.rundir.directory import FINISHED, RERUN, RunDir, runs_of
from mxscale.rundir.plan import Plan
from mxscale.tracking import payload, store, sync_state, tracker
from mxscale.util.errors import ConfigError

# What a rerun needs of the first run; summary.json is there of every run whose ranks were started
FILES = ("config.yaml", "environment.json", "price.json", "plan.json", "metrics.jsonl", "status.json", "summary.json")
FOLDER = "rerun"
SPLITS = {"test/top1": "test", "best/val_top1": "val"}  # what each of the verdict's figures is measured on
APART = ("seed", *UNSIGNED, *DATA_PATHS)  # no part of what two runs of other seeds have to share


@dataclass
class First:
    """The run that is run again."""

    source: str  # rerun=ID
    of: str  # MLflow's id, or its directory
    parent: Optional[str]  # MLflow's id, where the store of the new run has it
    files: RunDir  # its record
    config: Config  # as it was asked for
    seeds: List[Dict[str, float]] = field(default_factory=list)  # figures of runs that differ in the seed alone
    held: Any = None  # the folder of what was fetched, as long as this lives

    @property
    def settled(self) -> Dict[str, Any]:
        """What `auto` and `null` came to then."""
        plan = self.files.plan()
        return {
            "launch.ranks": plan.sizes.ranks,
            "launch.threads": plan.threads,
            "launch.device": plan.device,
        }

    def price(self, nodes: int, setup_minutes: float) -> dict:
        """The frozen price of then, on the machines and after the set-up of now."""
        price = self.files.read("price.json")
        return {**price, "nodes": nodes, "setup_minutes": setup_minutes} if price["known"] else price


# ---------------------------------------------------------------- the record


def find(config: Config) -> First:
    """The run that `config.rerun.run` names.  Raises ConfigError."""
    given = config.rerun.run
    source = f"rerun={given}"
    if os.path.isdir(given):
        return _of_directory(config, given, source)
    if os.sep in given:
        raise ConfigError(f"{source}: no such run directory")
    return _of_store(config, given, source)


def _of_directory(config: Config, given: str, source: str) -> First:
    files = RunDir(given)
    first = First(source, str(files), None, files, _checked(files, source))
    if config.tracking.enabled:
        first.parent = sync_state.load(files, tracker.store_uri(config), config.tracking.experiment)[1].run_id
    first.of = first.parent or str(files)
    beside = runs_of(files.path.parents[1], first.config.entry)
    first.seeds = _seeds(first, [_figures_of(other) for other in beside if other.state == FINISHED])
    return first


def _of_store(config: Config, run_id: str, source: str) -> First:
    tags, timeout_s, held = tracker.tags_of(config, run_id, source), config.tracking.timeout_s, None
    files = tracker.directory_of(config, tags)
    if files is None or not (files.path / "config.yaml").is_file():
        held = tempfile.TemporaryDirectory(prefix="mxscale-rerun-")
        files = RunDir(held.name)
        state = tracker.ask(config, source, lambda uri: store.fetch(uri, run_id, FILES, files.path, timeout_s))
        if state != FINISHED:
            raise ConfigError(_unfinished(source, state))
    parent = run_id if config.tracking.enabled else None
    first = First(source, run_id, parent, files, _checked(files, source), held=held)
    digest = files.plan().data_digest
    others = tracker.ask(config, source, lambda uri: store.finished_beside(uri, run_id, digest, timeout_s))
    first.seeds = _seeds(first, others)
    return first


def _checked(files: RunDir, source: str) -> Config:
    """The config on record; raises ConfigError where the record is not that of a finished run of this version."""
    state = files.state
    if (files.path / "config.yaml").is_file() and state != FINISHED:
        raise ConfigError(_unfinished(source, state or "no status"))
    lacking = [name for name in FILES if not (files.path / name).is_file()]
    if lacking:
        raise ConfigError(f"{source}: its record lacks {', '.join(lacking)}, so that it can't be run again")
    try:
        config, plan = files.asked(), files.plan()
        missing = [key for key in ("sizes", "threads", "device", "data_digest") if getattr(plan, key) is None]
    except ConfigError as error:
        raise ConfigError(f"{source}: its config is of another version of mxscale: {error}") from None
    missing += [name for name in ("price.json", "environment.json") if not files.read(name)]
    if missing:
        raise ConfigError(f"{source}: its record is of another version of mxscale: no {', '.join(missing)}")
    return config


def _unfinished(source: str, state: str) -> str:
    return f"{source}: that run has not finished ({state}); there is nothing to repeat yet"


def _figures_of(run: RunDir) -> dict:
    """As store.finished_beside has it; nothing of a run of another version."""
    try:
        return {"params": payload.params(run), "metrics": run.figures}
    except (ConfigError, TypeError, KeyError):
        return {"params": {}, "metrics": {}}


def _seeds(first: First, others: List[dict]) -> List[Dict[str, float]]:
    """The figures of each seed but the first run's own, of runs whose config is otherwise the same."""
    wanted, own = _apart_from_seed(payload.params(first.files)), str(first.config.seed)
    found = {}
    for other in others:
        seed, figures = other["params"].get("seed"), other["metrics"]
        figures = {name: figures[name] for name in verdict.FIGURES if name in figures}
        if figures and seed not in (None, own) and _apart_from_seed(other["params"]) == wanted:
            found[seed] = figures
    return list(found.values())


def _apart_from_seed(params: Dict[str, str]) -> Dict[str, str]:
    """A key that was not there yet had what is now its default."""
    params = {**{key: str(value) for key, value in flatten(to_dict(Config())).items()}, **params}
    return {key: value for key, value in params.items() if not (within(key, APART) or is_forecast(key))}


# ---------------------------------------------------------------- in the new run


def begin(run: RunDir, first: First) -> None:
    """Keep the record beside the run that repeats it."""
    (run.path / FOLDER).mkdir()
    for name in FILES:
        shutil.copy(first.files.path / name, run.path / FOLDER / name)
    recorded = flatten(to_dict(first.config))
    asked = {key: [value, recorded[key]] for key, value in first.settled.items()}
    run.write(RERUN, {"of": first.of, "parent": first.parent, "seeds": first.seeds, "asked": asked, "differs": []})


def compare(run: RunDir, config: Config) -> None:
    """Say what differs now from what is on record.  Raises ConfigError where it must not."""
    noted = run.read(RERUN)
    if noted is None:
        return
    first = RunDir(run.path / FOLDER)
    found = [str(each) for each in differences.between(first, run)]
    run.write(RERUN, {**noted, "differs": noted["differs"] + [each for each in found if each not in noted["differs"]]})
    if found and config.rerun.strict:
        raise ConfigError(f"rerun.strict=true: not as on record of {noted['of']}: {'; '.join(found)}")
    lines = [f"rerun     of {noted['of']}", f"expected  {_expected(config, run.plan(), found)}"]
    lines += [f"{'differs' if n == 0 else '':<9} {each}" for n, each in enumerate(found)]
    say("\n".join(lines))


def _expected(config: Config, plan: Plan, found: List[str]) -> str:
    if reason := _not_repeatable(config, plan.sizes.ranks):
        return f"within the spread of the seeds at best ({reason})"
    if found:
        return "within the spread of the seeds: the same weights are not promised where anything differs"
    return "the same weights: nothing that is on record differs"


def _not_repeatable(config: Config, ranks: int) -> Optional[str]:
    """Return why another run of this configuration may end with other weights; None if the weights are the same."""
    if not config.comm.entry.repeats(ranks):
        return config.comm.entry.not_repeatable
    lost = unsaved(config.comm)
    return lost and f"not repeatable for sure: {lost}"


def conclude(run: RunDir, status: dict) -> dict:
    """The status, with the verdict where this is a rerun that has finished; it is said and written down."""
    noted = run.read(RERUN)
    if noted is None or status["state"] != FINISHED:
        return status
    first = RunDir(run.path / FOLDER)
    splits = first.plan().splits
    images = {figure: splits[name].count if name in splits else 0 for figure, name in SPLITS.items()}
    judged = verdict.judge(_outcome(first), _outcome(run), noted["seeds"], images)
    told = {"of": noted["of"], "verdict": judged.kind, "why": judged.why, "first_difference": judged.first_difference}
    run.write(RERUN, {**noted, **told})
    for name in ("status.json", "summary.json"):
        run.write(name, {**run.read(name), "rerun": told})
    return {**status, "rerun": told}


def _outcome(run: RunDir) -> verdict.Outcome:
    losses, attempts = {}, {1}
    for line in run.history():
        if "train/loss" in line["metrics"]:
            # After a resume the first one is the mean of fewer steps
            if line["attempt"] in attempts:
                losses[line["step"]] = line["metrics"]["train/loss"]
            attempts.add(line["attempt"])
    figures = run.figures
    return verdict.Outcome(run.status().params_sha256, figures, losses)
