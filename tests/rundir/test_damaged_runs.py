"""A damaged run directory does not affect commands that concern other runs."""

import exported
import pytest
from refusals import error_of, refusal
from small_training import Training

from mxscale.cli import main
from mxscale.config.schema import from_dict
from mxscale.records import earlier_runs
from mxscale.rundir import checkpoints, directory, guards
from mxscale.rundir.json_record import FIELDS
from mxscale.rundir.plan import Origin, Plan
from mxscale.rundir.status import FINISHED, Status, Summary
from mxscale.serve import trained_models
from mxscale.tracking import payload, sync_state
from mxscale.train import builders, pretrained_init
from mxscale.util.atomic_files import digest_of
from mxscale.util.errors import ConfigError
from tests.fuzz.damage import place


@pytest.fixture
def runs(tmp_path):
    """Return a finished run and a damaged, newer one."""
    config = from_dict({"runs": str(tmp_path)})
    made = [directory.create(config), directory.create(config)]
    for run in made:
        run.save(Status(FINISHED))
        run.write("best.json", {"step": 1, "val/top1": 50.0, "checkpoint": "checkpoints/000000001"})
    made[1].path.joinpath("status.json").write_text("[torn")
    return made


def test_latest_skips_a_damaged_run(runs, tmp_path, capsys):
    assert directory.latest_trained(tmp_path).path == runs[0].path
    assert f"skipping a run directory: {runs[1].path}" in capsys.readouterr().err


def test_a_damaged_sibling_is_no_baseline(runs):
    for run in runs:
        run.save(Plan(weak_signature="s"))
    runs[0].path.joinpath("environment.json").write_text("[torn")
    assert earlier_runs.comparable(runs[1], Plan(weak_signature="s")) == []


def test_a_run_with_a_setting_that_was_removed_is_neither_a_baseline_nor_another_seed(runs):
    for run in runs:
        run.save(Plan(weak_signature="s"))
        run.save(Status(FINISHED))
        run.save(Summary({"throughput/median": 100.0}))
    path = runs[0].path / "config.yaml"
    like = payload.params(runs[1])
    assert payload.params(runs[0]) == like
    assert len(earlier_runs.comparable(runs[1], Plan(weak_signature="s"))) == 1
    path.write_text(path.read_text().replace("comm:\n", "comm:\n  update_on: server\n  threshold: 0.5\n"))
    assert payload.params(runs[0]) == {**like, "comm.update_on": "server"}
    assert earlier_runs.comparable(runs[1], Plan(weak_signature="s")) == []


def test_a_damaged_tracking_record_counts_as_none(runs):
    runs[0].path.joinpath(sync_state.STATE_FILE).write_text("[torn")
    assert "not in MLflow" in sync_state.view_hint(runs[0])


def test_the_damaged_run_itself_is_named(runs):
    with pytest.raises(ConfigError, match=r"status\.json is damaged"):
        runs[1].status()


def test_latest_skips_a_run_with_a_damaged_best(runs, tmp_path, capsys):
    runs[1].save(Status(FINISHED))
    runs[1].path.joinpath("best.json").write_text('{"step": "one"}')
    assert directory.latest_trained(tmp_path).path == runs[0].path
    assert "best.json is damaged: step='one': expected a whole number" in capsys.readouterr().err


READERS = {
    "config.yaml": lambda run: run.config(),
    "overrides.yaml": lambda run: run.read_yaml("overrides.yaml"),
    "plan.json": lambda run: run.plan(),
    "price.json": lambda run: run.price(),
    "status.json": lambda run: run.status(),
    "summary.json": lambda run: run.summary(),
    "ranks/0.json": lambda run: run.rank_status(0, 1),
    "metrics.jsonl": lambda run: run.history(),
    **{name: lambda run, name=name: run.read(name) for name in FIELDS},
}
TEXTS = ("", "{", "null", "5", "[1, 2]", '"x"', "\0\0", "\xff\xfe", "[" * 100_000)
NODES = {
    "fifo": "a FIFO, not a regular file",
    "directory": "a folder, not a regular file",
    "link to /dev/zero": "a device, not",
    "sparse": "expected at most|more than 4 GiB",
}


@pytest.mark.parametrize("name", sorted(READERS.keys() - {"metrics.jsonl"}))
def test_every_damaged_file_is_named(runs, name):
    path = runs[0].path / name
    for text in TEXTS:
        path.write_bytes(text.encode("latin-1"))
        assert error_of(READERS[name], runs[0]).startswith(f"{path} is damaged"), text[:10]


@pytest.mark.parametrize("name", sorted(READERS))
@pytest.mark.parametrize("kind", NODES)
def test_other_kinds_of_files_are_refused_at_once(runs, name, kind):
    path = runs[0].path / name
    place(path, kind)
    with pytest.raises(ConfigError, match=f"^{path} is damaged: .*({NODES[kind]})"):
        READERS[name](runs[0])


@pytest.mark.parametrize(
    "name, text, damage",
    [
        ("best.json", '{"step": 1, "val/top1": 50, "checkpoint": 3}', "checkpoint=3: expected a string"),
        ("best.json", '{"step": true, "val/top1": 50, "checkpoint": "x"}', "step=True: expected a whole number"),
        ("environment.json", '{"tags": [1]}', "tags=[1]: expected a mapping"),
        ("environment.json", '{"mxnet": {"features": [5]}}', "mxnet.features[0]=5: expected a string"),
        (
            "rerun.json",
            '{"of": "x", "seeds": [], "differs": [], "asked": {"launch.ranks": 5}}',
            "asked.launch.ranks=5: expected a list",
        ),
        ("cell.json", '{"sweep": null, "number": 1, "name": "x"}', "sweep=None: expected a string"),
        ("tracking.json", '{"id": "x", "uri": 5}', "uri=5: expected a string"),
        ("status.json", '{"attempts": [1]}', "attempts[0]=1: expected a mapping"),
        ("plan.json", '{"sizes": 5}', "sizes=5: expected a mapping"),
        ("price.json", '{"known": "yes"}', "known='yes': expected true or false"),
        ("config.yaml", "seed: 1\nep", "is damaged"),
        ("config.yaml", "seed: 1\nepochs: 1", "it is cut"),
        ("config.yaml", "seed: x\n", "seed=x"),
    ],
)
def test_wrong_types_are_named(runs, name, text, damage):
    (runs[0].path / name).write_text(text)
    message = error_of(READERS[name], runs[0])
    assert message.startswith(f"{runs[0].path / name}") and damage in message


def test_damaged_lines_of_metrics_are_passed_over(runs):
    good = '{"attempt":1,"step":1,"time_ms":1,"metrics":{"a":1.5}}'
    bad = [good.replace("1.5", "[1]"), good.replace("1.5", '"x"'), good.replace('"step":1', '"step":true'), "[" * 9999]
    runs[0].metrics_file.write_text("\n".join([*bad, "[1]", good, ""]))
    assert [line["metrics"] for line in runs[0].lines()] == [{"a": 1.5}]


def lock(run):
    with guards.locked(run):
        pass


@pytest.mark.parametrize(
    "name", ["lock", "stop", "alive", "ranks/0.alive", "ranks/0.log", "metrics.jsonl", "plan.json"]
)
def test_a_resume_refuses_a_fifo_in_place_of_a_file(runs, name):
    place(runs[0].path / name, "fifo")
    assert error_of(lock, runs[0]) == f"{runs[0].path / name} is damaged: not a file; remove it"


def test_a_resume_refuses_metrics_that_are_too_large_to_read(runs):
    place(runs[0].metrics_file, "sparse")
    assert error_of(lock, runs[0]) == f"{runs[0].metrics_file} is damaged: it has more than 4 GiB; remove it"


@pytest.mark.parametrize("name", ["checkpoints", "checkpoints/000000001", "probe"])
def test_a_resume_refuses_a_file_in_place_of_a_folder(runs, name):
    (runs[0].path / name).parent.mkdir(exist_ok=True)
    (runs[0].path / name).touch()
    assert error_of(lock, runs[0]) == f"{runs[0].path / name} is damaged: not a folder; remove it"


@pytest.mark.parametrize("damage", ["fifo", "sparse"])
@pytest.mark.parametrize("name", (*checkpoints.FILES, "MANIFEST"))
def test_a_damaged_file_makes_a_checkpoint_invalid_at_once(runs, name, damage):
    folder = runs[0].checkpoint(1)
    folder.mkdir(parents=True)
    for each in checkpoints.FILES:
        (folder / each).write_text(each)
    listed = "".join(f"{digest_of(folder / each)}  {each}\n" for each in checkpoints.FILES)
    (folder / "MANIFEST").write_text(listed)
    assert checkpoints.is_complete(folder)
    place(folder / name, damage)
    assert not checkpoints.is_complete(folder)


# ---------------------------------------------------------------- readers of a checkpoint verify all of it


@pytest.fixture
def trained(tmp_path):
    """Return a run with one checkpoint, its best."""
    training = Training(tmp_path / "run").step(1)
    training.checkpointer.record_validation(1, {"val/top1": 50.0})
    run = training.save(1).run
    run.write_config(training.config)
    run.save(Plan(class_names=("cat", "dog")))
    return run


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def used(run):
    trained_models.load(run, run.config())


def used_as_a_file(run):
    trained_models.load(str(run.checkpoint(1) / "params"), from_dict({"model": {"name": "small"}}))


def fine_tuned(run):
    new = directory.RunDir(run.path.parent / "new")
    weights_file = str(run.checkpoint(1) / "params")
    pretrained_init.obtain(new, from_dict({"model": {"pretrained": str(run)}}), Plan(pretrained=weights_file))


@pytest.mark.parametrize("reader", [used, used_as_a_file, fine_tuned])
@pytest.mark.parametrize("name", [*checkpoints.FILES, "optimizer", "MANIFEST"])
def test_a_flipped_byte_of_a_checkpoint_is_refused_by_its_readers(trained, reader, name):
    flip(trained.checkpoint(1) / name)
    assert error_of(reader, trained).startswith(f"{trained.checkpoint(1)} is damaged: ")


def test_a_checkpoint_of_an_impossible_name_is_refused(tmp_path):
    path = tmp_path / "checkpoints/\0"  # as best.json may name it
    assert error_of(checkpoints.verify, path) == f"{str(path)!r} is no path of a checkpoint: embedded null byte"


@pytest.mark.parametrize("reader", [used, fine_tuned])
def test_a_checkpoint_without_manifest_is_refused_by_its_readers(trained, reader):
    (trained.checkpoint(1) / "MANIFEST").unlink()
    reason = f"{trained.checkpoint(1)} is no complete checkpoint: MANIFEST: No such file or directory"
    assert error_of(reader, trained) == reason


def test_weights_that_change_before_the_ranks_read_them_are_refused(trained):
    file = str(trained.checkpoint(1) / "params")
    plan = Plan(pretrained=file, origin=Origin("run", {file: digest_of(file)}))
    flip(trained.checkpoint(1) / "params")
    message = f"{file} has changed since the preparation read it"
    assert error_of(builders.network, trained.config(), plan, []) == message


def test_a_resume_names_the_damaged_checkpoint_that_it_ignores(tmp_path, capsys):
    training = Training(tmp_path / "run", checkpoint={"keep": 2}).step(1).save(1).step(2).save(2)
    flip(training.run.checkpoint(2) / "optimizer")
    assert training.checkpointer.restore() == 1
    newest, earlier = training.run.checkpoint(2), training.run.checkpoint(1)
    assert capsys.readouterr().out == f"warning: {newest} is damaged: training resumes from {earlier}\n"


@pytest.mark.slow
def test_every_verb_refuses_a_damaged_checkpoint_in_one_line(cli, tmp_path, capsys):
    run = cli("train", "launch.ranks=1", "tracking=mlflow").run
    folder = run.path / run.read("best.json")["checkpoint"]
    flip(folder / "params")
    exported.photographs(tmp_path / "photographs", 1)
    reason = f"error: {folder} is damaged: params differs from MANIFEST; use another checkpoint"
    for argv in (["export"], ["predict", str(tmp_path / "photographs")], ["evaluate"], ["register", "name"]):
        assert main.main([argv[0], str(run), *argv[1:], *cli.overrides]) == 2
        assert capsys.readouterr().err.splitlines() == [reason]
    assert refusal(cli, f"model.pretrained={run}", entry="finetune") == reason
