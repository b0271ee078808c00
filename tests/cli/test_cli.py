"""The command line: the table of verbs, help, version, and the installed package."""

import os
import pickle
import re
import subprocess
import sys
from pkgutil import resolve_name

import pytest
import yaml
from hydra.core.global_hydra import GlobalHydra
from refusals import command_error
from repository import ROOT

from mxscale import __version__
from mxscale.cli import help_pages, main
from mxscale.cli.verbs import VERBS
from mxscale.config.schema import RULES, Config, rules_of, to_dict
from mxscale.rundir.directory import RunDir
from mxscale.rundir.status import Status
from mxscale.util.errors import ConfigError
from mxscale.util.terminal import echo


def output_of(capsys, *argv):
    assert main.main(list(argv)) == 0
    return capsys.readouterr().out


def test_help_lists_each_verb_on_one_line_below_its_heading(capsys):
    verbs = output_of(capsys, "--help").partition("\nexamples:")[0]
    listed = [line.split(None, 1) for line in verbs.splitlines() if line.startswith("  ")]
    assert listed == [[name, verb.summary] for name, verb in VERBS.items()]
    assert [line for line in verbs.splitlines() if line.endswith(":")] == ["train:", "use:", "measure:", "plan:",
                                                                         "reproduce:"]  # fmt: skip
    assert output_of(capsys) == output_of(capsys, "-h")


def test_the_version_is_that_of_the_package(capsys):
    assert output_of(capsys, "--version") == f"mxscale {__version__}\n"


@pytest.mark.slow
@pytest.mark.parametrize("arguments", ["prices", "layers", "train --cfg job"])
def test_a_reader_that_stops_early_causes_no_error(arguments):
    """As of `mxscale prices | head -1`."""
    argv = [sys.executable, "-m", "mxscale", *arguments.split()]
    process = subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    process.stdout.close()
    assert (process.stderr.read(), process.wait(60)) == (b"", 0)


@pytest.mark.parametrize("arguments", [["prices"], ["plan", "--help"], ["--version"], ["train", "--cfg", "job"]])
def test_output_that_cannot_be_written_is_one_line_and_fails(monkeypatch, capsys, arguments):
    with open("/dev/full", "w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        assert main.main(arguments) == 1
    assert capsys.readouterr().err == "error: standard output cannot be written (No space left on device)\n"


def test_runs_go_on_without_their_terminal(monkeypatch, capsys):
    def execute(*_):
        echo("step 1")
        return Status("FINISHED", exit=0)

    monkeypatch.setattr(main.job, "execute", execute)
    with open("/dev/full", "w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        assert main.main(["train"]) == 0
    assert not capsys.readouterr().err


@pytest.mark.parametrize("verb", VERBS)
def test_help_of_a_verb_shows_examples_and_settings(capsys, verb):
    page = output_of(capsys, verb, "--help")
    assert f"{verb} " in page.split("\n\n")[1]
    for key in main.own_settings(verb):
        assert f"\n  {key} " in page or f"\n  {key}." in page
    assert max(map(len, page.splitlines())) <= 120


def test_help_states_default_unit_meaning_and_valid_values(capsys):
    page = " ".join(output_of(capsys, "train", "--help=all").split())
    assert "comm.transport [gloo]" in page and "(gloo | mpi)" in page
    assert "log_every [10] interval between two lines of metrics (steps; at least 1)" in page
    assert "plan.nodes [[1,2,4,8]] " in " ".join(output_of(capsys, "plan", "--help").split())


@pytest.mark.parametrize(
    "argv, line",
    [
        (["predicts"], "mxscale predicts: did you mean predict?"),
        (["find-lr"], "mxscale find-lr was removed: compare rates in a sweep: mxscale train -m optimizer.lr="),
        (["xyz"], f"mxscale xyz: expected one of {', '.join(sorted(VERBS))}"),
        (["prices", "--as-of"], "unrecognized arguments: --as-of: settings are KEY=VALUE (epochs=3)"),
        (["plan", "plan=3"], "plan=3: a group of settings: give plan.KEY=VALUE"),
        (["doctor", "rerun=x"], "rerun=x: only `train` and `finetune` run a run again"),
        (["sync"], "run is missing: run=PATH"),
        (["sync", "/nowhere"], "/nowhere is no run directory"),
        (["sync", "/nowhere", "tracking.timeout_s=no"], "tracking.timeout_s=no"),
        (["sync", "/no where", "runs=x"], "/no where is no run directory"),
    ],
)
def test_an_invalid_command_line_is_one_line(capsys, argv, line):
    assert main.main(argv) == 2
    printed = capsys.readouterr()
    assert printed.err.startswith(f"error: {line}") and printed.err.count("\n") == 1 and not printed.out
    assert not GlobalHydra.instance().is_initialized()


@pytest.mark.parametrize("option", ["--experimental-rerun", "--experimental-rerun=", "--exp", "--e="])
def test_a_pickled_job_of_hydra_is_refused_and_not_executed(capsys, tmp_path, option):
    class Harm:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "made"),)

    (tmp_path / "config.pickle").write_bytes(pickle.dumps(Harm()))
    given = [option + str(tmp_path / "config.pickle")] if "=" in option else [option, str(tmp_path / "config.pickle")]
    assert main.main(["train", *given]) == 2
    written = capsys.readouterr()
    assert written.err.startswith(f"error: unrecognized arguments: {option}") and written.err.count("\n") == 1
    assert not (tmp_path / "made").exists()


def test_settings_and_options_come_in_any_order(capsys):
    for argv in (["prices", "--cfg", "job", "epochs=7"], ["prices", "epochs=7", "-c", "job"],
                 ["layers", "small", "--cfg", "job", "epochs=7"],
                 ["predict", "x.onnx", "a.jpg", "epochs=7", "--cfg=job", "b.jpg"]):  # fmt: skip
        assert "\nepochs: 7\n" in output_of(capsys, *argv)


@pytest.mark.parametrize(
    "argv, line",
    [
        (["prices", "-m", "minutes=[1,2]"], "mxscale prices -m: only train and finetune sweep over values"),
        (["train", "hydra/launcher=joblib"], "hydra/launcher=joblib without -m: Hydra's settings are those of a sweep"),
        (
            ["train", "--config-dir", "/x"],
            "unrecognized arguments: --config-dir",
        ),
        (["train", "--info"], "unrecognized arguments: --info"),
        (["train", "-m", "--cfg", "all"], "argument --cfg/-c: invalid choice: 'all'"),
    ],
)
def test_an_option_without_effect_is_refused(capsys, argv, line):
    assert command_error(capsys, *argv).startswith(f"error: {line}")


@pytest.mark.slow
@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="the wheel is built from a clone")
def test_a_wheel_contains_what_the_verbs_read(tmp_path):
    def run(*argv, **options):
        return subprocess.run([*map(str, argv)], capture_output=True, text=True, check=True, **options).stdout

    source, pip = tmp_path / "source", [sys.executable, "-m", "pip", "-q"]
    run("git", "clone", "-q", "--depth", "1", f"file://{ROOT}", source)
    run(*pip, "wheel", "--no-deps", "--no-build-isolation", "--no-index", "-w", tmp_path, source)
    (wheel,) = tmp_path.glob("mxscale-*.whl")
    run(*pip, "install", "--no-deps", "--no-index", "--target", tmp_path / "installed", wheel)
    for name in run("git", "ls-files", "mxscale", "conf", cwd=source).split():
        name = name.replace("conf/", "mxscale/conf/", 1) if name.startswith("conf/") else name
        assert (tmp_path / "installed" / name).exists(), name
    script = [sys.executable, tmp_path / "installed" / "bin" / "mxscale"]
    asked = ["plan.nodes=1", f"plan.output={tmp_path}/plan", "machine.instance=p3.16xlarge"]
    shown = run(*script, "plan", *asked, cwd=tmp_path, env={"PYTHONPATH": str(tmp_path / "installed")})
    assert "cheapest and fastest: 1 x p3.16xlarge" in shown


@pytest.mark.parametrize(
    "verb, key, registry",
    [
        ("evaluate", "split", "mxscale.serve.evaluate:SPLITS"),
        ("export", "format", "mxscale.serve.export:FORMATS"),
        ("replay", "scale", "mxscale.replay.entry:SCALES"),
        ("report", "report.action", "mxscale.report.report:ACTIONS"),
    ],
)
def test_each_choice_of_a_verb_is_implemented(verb, key, registry):
    assert set(rules_of(VERBS[verb].settings)[key].choices) == set(resolve_name(registry))


def test_help_of_a_training_shows_the_usual_settings_and_the_forms(capsys):
    brief, complete = (output_of(capsys, "train", flag) for flag in ("--help", "--help=all"))
    assert re.findall(r"^  ([a-z_.0-9]+)  ", brief, re.MULTILINE) == [k for k in RULES if k in help_pages.USUAL]
    assert "data=NAME model=NETWORK" in brief and all(f"\n  {key} " in complete for key in RULES)


def test_the_kind_of_data_without_its_group_is_refused(capsys):
    expected = "error: data.kind=imagefolder: give data=imagefolder, which also sets its classes and recipe\n"
    assert command_error(capsys, "train", "data.kind=imagefolder", "data.root=/x") == expected


@pytest.mark.parametrize(
    "typed, instead",
    [
        ("launch=docker", "run the command in a container"),
        ("launch.kind=docker", "run the command in a container"),
        ("launch.image=mxscale:source", "run the command in a container"),
        ("schedule=exponential", "use schedule=cosine or schedule=poly"),
    ],
)
def test_a_removed_setting_names_what_replaces_it(typed, instead, capsys):
    assert f"was removed: {instead}" in command_error(capsys, "train", typed)


def test_threads_of_a_training_are_named_where_those_of_a_prediction_were_removed(capsys):
    assert "data.threads" in command_error(capsys, "train", "threads=4")


def test_a_record_with_a_removed_setting_is_read_if_it_had_its_default(tmp_path):
    run, values = RunDir(tmp_path), to_dict(Config())
    earlier = {"launch": {**values["launch"], "kind": "process"}, "comm": {**values["comm"], "probe_s": 5.0}}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump({**values, **earlier}))
    assert run.config() == Config()
    (tmp_path / "config.yaml").write_text(yaml.safe_dump({**values, "launch": {**values["launch"], "kind": "docker"}}))
    with pytest.raises(ConfigError, match=r"config.yaml: launch.kind=docker: launch.kind was removed: run the command"):
        run.requested_config()
    assert run.config() == Config()  # its results and weights can be used
