"""Convert composed settings to a run's frozen config; resolve resume, rerun and keywords such as `latest`."""

import os
from typing import Optional

from mxscale.cli import CONF
from mxscale.config.datasets import DATASETS
from mxscale.config.networks import SYMBOL
from mxscale.config.schema import Config, flatten, from_dict, origin_of, to_dict, unflatten
from mxscale.config.signature import within
from mxscale.config.validation import validate
from mxscale.rerun import rerun
from mxscale.rundir import directory
from mxscale.rundir.directory import RunDir
from mxscale.rundir.status import FINISHED
from mxscale.tracking import history
from mxscale.util.errors import ConfigError


def configure(values: dict, overrides) -> tuple:
    """Return the config of a run, the RunDir to resume or None, and the recorded run to run again or None.

    Args:
        overrides: The command line; a resume and a rerun accept only some settings.

    Raises:
        ConfigError: The settings are invalid, or can't be combined with the resume or rerun.
    """
    values = with_choices(values, overrides)
    config = validated(values, overrides)
    if config.budget.dry_run and (config.resume or config.rerun.run):
        raise ConfigError("budget.dry_run=true: it prepares a new run; leave out resume= and rerun.run=")
    if config.rerun.run is not None:
        if config.resume is not None:
            both = f"resume={config.resume} with rerun={config.rerun.run}"
            raise ConfigError(f"{both}: resume an interrupted rerun with resume=DIR only")
        recorded = rerun.find(config)
        return resolve(merge_for_rerun(recorded, values, overrides)), None, recorded
    return (*_new_or_resumed(config, values, overrides), None)


def with_choices(values: dict, overrides) -> dict:
    """Return the settings of a new run; those of a folder of images that are not typed follow the images.

    An experiment, a recipe, a resumed run and a rerun have settings of their own. Raises ConfigError.
    """
    typed = {override.lstrip("+~").partition("=")[0] for override in overrides}
    recorded = values["resume"] not in (None, "auto") or values["rerun"]["run"] is not None
    complete = recorded or typed & {"experiment", "recipe"}
    entry = DATASETS.get(values["data"]["kind"])
    if complete or not (entry and entry.folder and values["data"]["root"]):
        return values
    from mxscale.launcher import choices  # NumPy and Pillow

    names = [{"model": "model.name", "augment": "data.augment"}.get(key, key) for key in typed if key != "data"]
    config = validated(values, overrides)
    chosen = choices.choose(config, lambda key: within(key, names))
    return unflatten({**flatten(values), **chosen})


def with_typed_size(values: dict, overrides) -> dict:
    """Return the settings; data.image_size= on the command line replaces the size that model.input=checkpoint takes."""
    typed = any(override.lstrip("+").startswith("data.image_size=") for override in overrides)
    if typed and values["model"]["input"] == "checkpoint":
        return {**values, "model": {**values["model"], "input": "normalisation"}}
    return values


def validated(values: dict, overrides) -> Config:
    """Return the settings of a run.

    Raises ConfigError also if the command line names images, but not the kind of set, which is then the default one.
    """
    config = validate(from_dict(with_typed_size(values, overrides)))
    keys = {override.lstrip("+").partition("=")[0]: override for override in overrides}
    unused = [keys[key] for key in ("data.root", "data.train", "data.val", "data.test") if key in keys]
    named = keys.keys() & {"data", "data.kind", "experiment", "resume", "rerun.run"}
    entry = DATASETS[config.data.kind]
    kind = keys.get("data.kind")
    if kind and named == {"data.kind"} and (CONF / "data" / f"{config.data.kind}.yaml").is_file():
        raise ConfigError(f"{kind}: give data={config.data.kind}, which also sets its classes and recipe")
    if unused and not (named or entry.required or entry.generated):
        raise ConfigError(f"{unused[0]}: data={config.data.kind} reads no files; add data=imagefolder or data=recordio")
    return config


def _new_or_resumed(config: Config, values: dict, overrides) -> tuple:
    if config.resume is None:
        return resolve(config), None
    if config.resume == "auto":
        config = resolve(config)
        run = unfinished_run_of(config)
        return (merge_for_resume(run, to_dict(config), overrides) if run else config), run
    run = RunDir(config.resume)
    if not run.exists:
        such = f"{config.runs}/{config.entry}/DATE_TIME_run"
        raise ConfigError(f"resume={config.resume} is no run directory: expected one such as {such}")
    if (run.path / "sweep.json").is_file():
        advice = "repeat its command line with sweep.resume=true"
        raise ConfigError(f"resume={config.resume} is a sweep, not one run: {advice}")
    run.config()  # raises ConfigError if it is damaged
    if run.state == FINISHED:
        further = f"to train its network further: mxscale train model.pretrained={config.resume}"
        raise ConfigError(f"resume={config.resume}: that run is finished; {further}")
    return merge_for_resume(run, values, overrides), run


def resolve(config: Config) -> Config:
    """Return the config with `latest`, `run:ID` and a missing model.name replaced by what they refer to."""
    values = to_dict(config)
    kind, rest = origin_of(config.model.pretrained or "")
    if kind == "latest":
        values["model"]["pretrained"] = str(directory.latest_trained(config.runs).path)
    if kind == "run":
        values["model"]["pretrained"] = str(history.find_run(config, rest, f"model.pretrained=run:{rest}"))
    values["model"]["name"] = network_of(config.model.name, values["model"]["pretrained"])
    return validate(from_dict(values))


def network_of(name: Optional[str], source: Optional[str]) -> str:
    """Return model.name as given, or the network of model.pretrained: its symbol graph, or the network of that run."""
    if source and origin_of(source)[0] == "symbol":
        known = SYMBOL
    elif source and os.path.isdir(source) and name in (None, SYMBOL):
        known = RunDir(source).config().model.name
    elif name in (None, SYMBOL):
        raise ConfigError(
            f"model.name={name or 'null'}: name a network, or give model.pretrained=symbol:PREFIX or RUN_DIR"
        )
    else:
        return name
    if name not in (None, known):
        raise ConfigError(f"model.name={name}: model.pretrained={source} has the network {known}; set model.name=null")
    return known


# Settings that a resume may change; any other would make it another run. The price of the first start stays.
RESUMABLE = ("launch", "tracking", "checkpoint", "comm", "log_every", "validate_every", "epochs",
             "max_steps", "target_top1", "stop_at_target", "patience", "budget", "resume", "sweep")  # fmt: skip


def merge_for_resume(run: RunDir, values: dict, overrides) -> Config:
    """Return a run's config with the changes of this command line. Raises ConfigError if it becomes another run."""
    merged, requested = flatten(to_dict(run.config())), flatten(to_dict(run.requested_config()))
    composed, usual = flatten(values), flatten(to_dict(Config()))
    for override in overrides:
        if override == "epochs=auto":  # fitted when the run was new
            continue
        key = override.split("=")[0].lstrip("+~")
        names = [name for name in composed if within(name, ["data.augment" if key == "augment" else key])]
        if key in ("experiment", "recipe", "debug"):  # represents the settings that its file changes, of any group
            names = [name for name in composed if composed[name] != usual[name]]
        for name in names:
            if name.split(".")[0] in RESUMABLE:
                merged[name] = composed[name]
            elif requested.get(name) != composed[name]:
                has = f"that run has {name}={requested.get(name)}"
                raise ConfigError(f"{override} with resume={run}: {has}; leave it out, or start a new run")
    return _merged(merged, f"resume={run}")


def _merged(settings: dict, where: str) -> Config:
    """Return the validated config of flat settings, which a record and a command line gave. Raises ConfigError."""
    try:
        return validate(from_dict(unflatten(settings)))
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None


# Settings that a rerun may change: where it runs, where it is recorded, where its files are.
FOR_A_RERUN = ("rerun", "launch", "tracking", "budget", "runs", "data.cache")


def merge_for_rerun(recorded: rerun.RecordedRun, values: dict, overrides) -> Config:
    """Return the recorded config, with the ranks and threads of that run.

    Raises ConfigError if this command line changes other settings than FOR_A_RERUN.
    """
    merged, composed = {**flatten(to_dict(recorded.config)), **recorded.resolved}, flatten(values)
    if values["entry"] != recorded.config.entry:
        entry = recorded.config.entry
        raise ConfigError(f"{recorded.source}: that run is one of {entry}: mxscale {entry} {recorded.source}")
    usual = flatten(to_dict(Config()))
    taken = {"rerun.run", "rerun.strict", "runs", "resume", "tracking.enabled", "tracking.uri", "tracking.timeout_s"}
    for override in overrides:
        key = override.split("=")[0].lstrip("+~")
        if not within(key, FOR_A_RERUN):
            raise ConfigError(
                f"{override} with {recorded.source}: only {', '.join(FOR_A_RERUN[1:])} can differ from the record; "
                "leave it out"
            )
        # A group (machine=p3) represents the settings that its file changes
        of_group = (name for name in composed if name.startswith(key + ".") and composed[name] != usual[name])
        taken.update([key] if key in composed else of_group)
    merged.update({name: composed[name] for name in taken})
    if merged["launch.ranks"] != recorded.resolved["launch.ranks"] and merged["data.shards"] is None:
        merged["data.shards"] = recorded.files.plan().sizes.shards  # the same micro-batches
    return _merged(merged, recorded.source)


def unfinished_run_of(config: Config) -> Optional[RunDir]:
    """Return the newest unfinished run of the same config, which resume=auto resumes."""
    wanted = {k: v for k, v in flatten(to_dict(config)).items() if k.split(".")[0] not in RESUMABLE}
    if config.epochs == "auto":
        for fitted in ("schedule.steps", "schedule.warmup_epochs"):  # when the run was new
            del wanted[fitted]
    for run in directory.runs_of(config.runs, config.entry):
        if run.state == FINISHED:
            continue
        try:
            saved = flatten(to_dict(run.requested_config()))
        except ConfigError:  # damaged, or of another version
            continue
        if all(saved.get(key, None) == value for key, value in wanted.items()):
            return run
    return None
