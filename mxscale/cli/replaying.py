"""`mxscale replay`: list the replays; run the trials of one or of all as a sweep; write their pages."""

import dataclasses
import shlex
import time
from pathlib import Path
from typing import List

from hydra import compose
from hydra.core.hydra_config import HydraConfig
from omegaconf import OmegaConf

from mxscale.cli import multirun
from mxscale.cli.explain import explain, refuse
from mxscale.config.schema import from_dict, to_dict
from mxscale.config.validation import validate
from mxscale.config.verb_settings import Replay as ReplaySettings
from mxscale.environment import gpus, hosts
from mxscale.launcher.budget import REASON as BUDGET
from mxscale.rendering.page import check_installed, prepare
from mxscale.replay import availability, inputs, page, registry, results
from mxscale.replay.availability import Here
from mxscale.replay.entry import FULL, SCALES, Planned, Replay
from mxscale.report import claims as claim_texts
from mxscale.rundir.status import DONE, FAILURE, INTERRUPTED, Status
from mxscale.rundir.sweep_directory import REFUSED_TRIAL, SweepDirectory
from mxscale.sweep import sweep, trials
from mxscale.util import text_table
from mxscale.util.errors import ConfigError
from mxscale.util.redaction import redact
from mxscale.util.terminal import echo


class Request:
    """A command line of `mxscale replay`."""

    def __init__(self, values: dict, options: ReplaySettings):
        """Raises ConfigError."""
        if options.slow_hosts and options.scale == FULL:
            raise ConfigError(f"slow_hosts={options.slow_hosts}: only for scale=small; full scale has launch.hosts")
        self.config = validate(from_dict(values))
        self.options, self.scale = options, options.scale
        self.output = Path(options.output or Path(self.config.runs) / "replays")
        typed = HydraConfig.get().overrides.task
        self.overrides = [word for word in typed if trials.top_of(word) not in to_dict(ReplaySettings())]
        keys = [word.partition("=")[0].lstrip("+") for word in self.overrides]
        devices = [gpu["name"] for gpu in gpus.driver().get("gpus", [])]
        folders = {name: folder for name in inputs.NAMES if (folder := getattr(options, name))}
        self.here = Here(devices, hosts.find(self.config), options.slow_hosts or (), keys, folders)
        rounds = 0 if self.scale == FULL or "seed" in keys else options.rounds
        self.seeds = range(1, rounds + 1)

    def command(self, replay: Replay) -> str:
        own, defaults = to_dict(self.options), to_dict(ReplaySettings())
        words = [f"{key}={own[key]}" for key in ("scale", "rounds", *inputs.NAMES) if own[key] != defaults[key]]
        slow = [f"slow_hosts=[{','.join(self.here.slow_hosts)}]"] if self.here.slow_hosts else []
        return shlex.join(["mxscale", "replay", replay.name, *words, *slow, *map(redact, self.overrides)])

    def fetch(self, chosen: List[Replay]) -> None:
        """Fetch MNIST if a trial needs it."""
        if any(inputs.MNIST in trial.needs for replay in chosen for trial in replay.grid(self.scale).trials):
            lacking = inputs.without_mnist(self.config.data, self.options.mnist)
            self.here = dataclasses.replace(self.here, lacking=lacking)

    def possible(self, replay: Replay) -> List[Planned]:
        """Return the runs that have what they need."""
        planned = replay.grid(self.scale).planned(self.seeds)
        return [one for one in planned if not availability.missing(one.trial, self.here)]


def main(values: dict, options: ReplaySettings) -> int:
    """List the replays, or run one or all; return the exit status. Raises ConfigError."""
    request = Request(values, options)
    if options.replay is None:
        echo(listing(request.here))
        return DONE
    check_installed("mxscale replay")
    chosen, status = registry.chosen(options.replay), DONE
    prepare(request.output)
    request.fetch(chosen)
    for replay in chosen:
        if len(chosen) > 1 and (alone := compares_nothing(replay, request)):
            echo(alone)
            continue
        exit_status, stopped, directory = run(replay, request)
        content = results.content(
            replay, request.scale, request.seeds, directory, request.here, request.command(replay)
        )
        echo(summary(content, page.write(content, request.output)))
        status = max(status, exit_status)
        if stopped:
            break
    return status


def listing(here: Here) -> str:
    """Return a table of the replays, and below it what each needs at full scale."""
    lines = [("replay", "work", "figure or table", "scale=full", "scale=small")]
    needs = []
    for replay in registry.REPLAYS.values():
        runnable = [availability.runnable(replay.grid(scale), here) for scale in SCALES]
        lines.append((replay.name, replay.work, replay.shows, *runnable))
        needs.append((replay.name, "; ".join(availability.lacking(replay.full, here)) or "nothing"))
    table = text_table.columns(lines)
    return "\n".join([*table, "", "Missing here for scale=full:", *text_table.columns(needs, indent="  ")])


def compares_nothing(replay: Replay, request: Request) -> str:
    """Return why a small replay has nothing to compare: of several series this machine can run one; else ""."""
    series = {one.trial.series for one in request.possible(replay)} - {None}
    if request.scale == FULL or len(series) != 1 or len({trial.series for trial in replay.small.shown}) == 1:
        return ""
    return f"{replay.name}: skipped, only {series.pop()} can run here; run the replay by its name in each image"


def run(replay: Replay, request: Request) -> tuple:
    """Run the trials of a replay that can run and have no result.

    Returns:
        The exit status, whether a signal stopped it, and the sweep's directory.
    """
    possible = request.possible(replay)
    if not any(one.trial.series is not None for one in possible):
        analogue = "; scale=small runs an analogue" if request.scale == FULL else ""
        echo(f"{replay.name}: no run is possible here{analogue}")
        return DONE, False, None
    opened = open_sweep(replay, request, len(possible))
    status = DONE
    try:
        for number, planned in enumerate(possible):
            ended = run_trial(opened.sweep, replay, planned, number, request)
            status = max(status, ended.exit)  # a trial that does not compose is not recorded
            stopped = bool(opened.signals.reason) or (ended.exit == INTERRUPTED and ended.reason != BUDGET)
            if stopped:
                break
    finally:
        status = max([status, *opened.close()])
    return status, stopped, opened.sweep


def open_sweep(replay: Replay, request: Request, count: int) -> multirun.OpenSweep:
    """Return the newest sweep of the same command, or a new one."""
    values = to_dict(request.config)
    values.update(name=replay.name)
    typed = [f"replay={replay.name}", f"scale={request.scale}", *request.overrides]
    earlier = None if request.options.again else sweep.find(from_dict(values), trials.identity(typed))
    values["sweep"]["resume"] = earlier is not None
    facts = {"swept": {}, "cells": count, "at_a_time": 1, "sweeper": "replay", "launcher": "basic",
             "replay": f"{replay.name} {request.scale}"}  # fmt: skip
    return multirun.OpenSweep(values, typed, facts)


def run_trial(directory: SweepDirectory, replay: Replay, planned: Planned, number: int, request: Request) -> Status:
    """Run one trial unless it has finished, record how it ended, and return its status."""
    since, name = time.time(), planned.name
    try:
        composed, values, overrides = settings(directory, replay, planned, request)
    except KeyError as error:
        echo(f"trial {number} {name} starts from {error.args[0]}, which has not finished")
        return Status(REFUSED_TRIAL, exit=FAILURE)
    except Exception as error:
        return Status(REFUSED_TRIAL, exit=refuse(f"{replay.name}, {name}: {explain(error)}"))
    return multirun.run_trial(composed, sweep.Trial(directory, number, values, overrides, since, name))


def settings(directory: SweepDirectory, replay: Replay, planned: Planned, request: Request) -> tuple:
    """Return the settings of a run: as composed, as a dictionary, and the overrides."""
    grid, here, trial = replay.grid(request.scale), request.here, planned.trial
    defaults = availability.settings(trial, grid, results.finished(directory), request.config.data.cache, here)
    defaults += [] if planned.seed is None else [f"seed={planned.seed}"]
    typed = request.overrides
    if any(word.startswith("launch.hosts=") for word in defaults):  # the first of those typed
        typed = [word for word in typed if not word.lstrip("+").startswith("launch.hosts=")]
    overrides = [*defaults, *typed]  # the last of a key counts
    composed = compose(trial.verb, overrides)
    return composed, OmegaConf.to_container(composed, resolve=True), overrides


def summary(content: results.Content, path: Path) -> str:
    """Return the claims that a replay decides and where its page is, for the terminal."""
    lines = [("replay", f"{content.replay.name}, {content.state}")]
    for one in content.outcomes:
        figures = filter(None, (claim_texts.state(one), claim_texts.by_runs(one, one.state)))
        lines.append(("claim", f"{one.row['id']}: {', '.join(figures)}"))
    lines += [("without", f"{planned.name}: {why}") for planned, why in content.missing]
    return "\n".join(text_table.columns([*lines, ("page", str(path))], indent="  "))
