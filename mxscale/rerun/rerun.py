"""Reruns: `rerun=ID` runs a recorded run again, lists what differs and judges the result.

The record comes from the run directory if it is here, else from the files that MLflow stores of it. A copy of it
lies in the new run's directory, rerun/, so that a resume and the verdict need neither.
"""

import os
import shutil
import tempfile
from dataclasses import dataclass, field, replace
from typing import Any, Dict, List, Optional, Sequence, Tuple

from mxscale.config.schema import Config, flatten, to_dict
from mxscale.config.signature import DATA_PATHS, UNSIGNED, within
from mxscale.launcher.context import Hook, RunContext, Signals
from mxscale.records.recorded import is_setting
from mxscale.rerun import comparison
from mxscale.rundir.directory import RERUN, RunDir, runs_of
from mxscale.rundir.plan import Plan
from mxscale.rundir.price import Price
from mxscale.rundir.status import FINISHED, SPENT, Status
from mxscale.tracking import history, payload, sync_state, uris
from mxscale.util.errors import ConfigError
from mxscale.util.terminal import echo

# What a rerun needs of the recorded run; each run whose ranks were started has a summary.json
FILES = ("config.yaml", "environment.json", "price.json", "plan.json", "metrics.jsonl", "status.json", "summary.json")
FOLDER = "rerun"
SPLITS = {"test/top1": "test", "best/val_top1": "val"}  # the split that each figure of the verdict is measured on
MAY_DIFFER = ("seed", *UNSIGNED, *DATA_PATHS)  # in runs that count as other seeds of the same run


@dataclass
class RecordedRun:
    """The finished run that is run again."""

    source: str  # rerun=ID
    id: str  # of the MLflow run, or the run directory
    parent: Optional[str]  # MLflow's run id, if the store of the new run has it
    files: RunDir  # its record
    config: Config  # as its user set it
    seeds: List[Dict[str, float]] = field(default_factory=list)  # figures of runs that differ in the seed alone
    folder: Any = None  # a temporary directory of fetched files, removed with this object

    @property
    def resolved(self) -> Dict[str, Any]:
        """The values that `auto` and `null` had in that run, and its last step if its clock ended it."""
        plan, status = self.files.plan(), self.files.status()
        values = {"launch.ranks": plan.sizes.ranks, "launch.threads": plan.threads, "launch.device": plan.device}
        return {**values, "max_steps": status.step} if status.reason == SPENT else values


def find(config: Config) -> RecordedRun:
    """Return the run that `config.rerun.run` names. Raises ConfigError."""
    name, source = config.rerun.run, f"rerun={config.rerun.run}"
    if os.path.isdir(name):
        return _from_directory(config, RunDir(name), source)
    if os.sep in name:
        raise ConfigError(f"{source}: no such run directory")
    return _from_store(config, name, source)


def _from_directory(config: Config, files: RunDir, source: str) -> RecordedRun:
    recorded_config, parent = _checked(files, source), None
    if config.tracking.enabled:
        parent = sync_state.load(files, uris.store_uri(config.tracking, config.runs), "").run_id
    siblings, digest = runs_of(files.path.parents[1], recorded_config.entry), files.plan().data_digest
    seeds = _seeds(files, [_figures_of(sibling, digest) for sibling in siblings])
    return RecordedRun(source, parent or str(files), parent, files, recorded_config, seeds)


def _from_store(config: Config, run_id: str, source: str) -> RecordedRun:
    store = history.Store(config, source)
    run, folder = store.run(run_id), None
    files = history.directory_of(config, run, source)
    if files is None or not files.exists:
        if run.status != FINISHED:
            raise ConfigError(_unfinished(source, run.status))
        folder = tempfile.TemporaryDirectory(prefix="mxscale-rerun-")
        files = RunDir(folder.name)
        store.fetch(run_id, FILES, files.path)
    recorded_config, parent = _checked(files, source), run_id if config.tracking.enabled else None
    others = store.finished_beside(run_id, files.plan().data_digest)
    seeds = _seeds(files, [(other.current, other.metrics) for other in others])
    return RecordedRun(source, run_id, parent, files, recorded_config, seeds, folder)


def _checked(files: RunDir, source: str) -> Config:
    """Return the recorded config. Raises ConfigError unless the record is a finished run of this version."""
    if files.exists and files.state != FINISHED:
        raise ConfigError(_unfinished(source, files.state or "no status"))
    missing = [name for name in FILES if not (files.path / name).is_file()]
    if missing:
        raise ConfigError(f"{source}: its record lacks {', '.join(missing)}, which a rerun needs")
    try:
        config, plan = files.requested_config(), files.plan()
        for read in (files.price, files.summary, files.history, lambda: files.read("environment.json")):
            read()  # damage is found now
    except ConfigError as error:
        raise ConfigError(f"{source}: its record is damaged, or of another version of mxscale: {error}") from None
    missing = [key for key in ("sizes", "threads", "device", "data_digest") if getattr(plan, key) is None]
    if missing:
        raise ConfigError(f"{source}: its record is of another version of mxscale: no {', '.join(missing)}")
    return config


def _unfinished(source: str, state: str) -> str:
    return f"{source}: that run has not finished ({state}); rerun a finished run"


def _figures_of(run: RunDir, digest: str) -> Tuple[Dict[str, str], Dict[str, float]]:
    """Return params and metrics of a finished run on the data with this digest; empty ones of another run."""
    try:
        if run.state == FINISHED and run.plan().data_digest == digest:
            return payload.params(run), run.figures
    except ConfigError:  # of another version
        pass
    return {}, {}


def _seeds(files: RunDir, others: Sequence[Tuple[Dict[str, str], Dict[str, float]]]) -> List[Dict[str, float]]:
    """Return the figures of each other seed, from (params, metrics) of runs whose config is otherwise the same."""
    recorded = payload.params(files)
    seeds = {}
    for params, metrics in others:
        figures = {name: metrics[name] for name in comparison.FIGURES if name in metrics}
        is_other_seed = params.get("seed") not in (None, recorded["seed"])
        if figures and is_other_seed and _without_seed(params) == _without_seed(recorded):
            seeds[params["seed"]] = figures
    return list(seeds.values())


def _without_seed(params: Dict[str, str]) -> Dict[str, str]:
    """Return the params that must be equal; a key that an older run lacks has today's default."""
    params = {**{key: str(value) for key, value in flatten(to_dict(Config())).items()}, **params}
    return {key: text for key, text in params.items() if is_setting(key, text) and not within(key, MAY_DIFFER)}


class Rerun(Hook):
    """Takes part in every run, because a resumed rerun is compared and judged too.

    Args:
        recorded: The run to repeat; None for any other run.
    """

    def __init__(self, recorded: Optional[RecordedRun] = None):
        self.recorded = recorded

    def price(self, config: Config) -> Optional[Price]:
        """Return the recorded price with today's set-up time."""
        price = self.recorded and self.recorded.files.price()
        return price and replace(price, setup_minutes=config.launch.setup_minutes)

    def on_created(self, run: RunDir, signals: Signals) -> None:
        """Copy the record into the directory of the run that repeats it."""
        recorded = self.recorded
        if recorded is None:
            return
        (run.path / FOLDER).mkdir()
        for name in FILES:
            shutil.copy(recorded.files.path / name, run.path / FOLDER / name)
        values = flatten(to_dict(recorded.config))
        resolved = {key: [value, values[key]] for key, value in recorded.resolved.items()}
        run.write(RERUN, {"of": recorded.id, "parent": recorded.parent, "seeds": recorded.seeds, "asked": resolved,
                          "differs": []})  # fmt: skip

    def before_ranks(self, context: RunContext, plan: Plan) -> None:
        """Record and print what differs from the record. Raises ConfigError if rerun.strict forbids it."""
        run, config, known = context.run, context.config, context.run.read(RERUN)
        if known is None:
            return
        differs = comparison.between(RunDir(run.path / FOLDER), run)
        run.write(RERUN, {**known, "differs": list(dict.fromkeys([*known["differs"], *differs]))})
        if differs and config.rerun.strict:
            raise ConfigError(f"rerun.strict=true: differs from the record of {known['of']}: {'; '.join(differs)}")
        lines = [f"rerun     of {known['of']}", f"expected  {_expected(config, plan, differs)}"]
        lines += [f"{'differs' if n == 0 else '':<9} {line}" for n, line in enumerate(differs)]
        echo("\n".join(lines))

    def on_finished(self, run: RunDir, status: Status) -> None:
        """Add the verdict to rerun.json of a finished rerun."""
        known = run.read(RERUN)
        if known is None or status.state != FINISHED:
            return
        recorded = RunDir(run.path / FOLDER)
        splits = recorded.plan().splits
        images = {figure: splits[name].count if name in splits else 0 for figure, name in SPLITS.items()}
        judged = comparison.judge(_outcome(recorded), _outcome(run), known["seeds"], images)
        run.write(RERUN, {**known, "verdict": judged.kind, "why": judged.why,
                          "first_difference": judged.first_difference})  # fmt: skip


def _expected(config: Config, plan: Plan, differs: List[str]) -> str:
    backend = config.comm.entry
    if not backend.repeats(plan.sizes.ranks):
        return f"at best within the spread of the seeds ({backend.not_repeatable})"
    if differs:
        return "within the spread of the seeds: equal weights need an equal environment"
    return "the same weights: nothing differs from the record"


def _outcome(run: RunDir) -> comparison.Outcome:
    losses, attempts = {}, {1}
    for line in run.history():
        if "train/loss" in line["metrics"]:
            # The first loss after a resume is the mean of fewer steps
            if line["attempt"] in attempts:
                losses[line["step"]] = line["metrics"]["train/loss"]
            attempts.add(line["attempt"])
    return comparison.Outcome(run.status().params_sha256, run.figures, losses)
