"""The run directory: its files and its metrics."""

import json
import os

import pytest
from plans import make_sizes, make_splits

from mxscale.config.schema import from_dict
from mxscale.rundir import guards
from mxscale.rundir.directory import RunDir, create, latest_trained, runs_of
from mxscale.rundir.plan import Address, Host, InputChange, Origin, Plan
from mxscale.rundir.status import DONE, FAILED, FAILURE, FINISHED, INTERRUPTED, REFUSED, Attempt
from mxscale.util.errors import ConfigError


@pytest.fixture
def run(tmp_path):
    return create(from_dict({"runs": str(tmp_path), "name": "a"}), now=0)


def write_lines(run, *lines):
    """(attempt, step, metrics) each."""
    with open(run.metrics_file, "a") as file:
        for number, (attempt, step, metrics) in enumerate(lines):
            entry = {"attempt": attempt, "step": step, "time_ms": 1000 * attempt + number, "metrics": metrics}
            file.write(json.dumps(entry) + "\n")


def test_a_refused_resume_does_not_move_the_end_of_a_killed_attempt(run):
    run.begin_alive(1)
    os.utime(run.alive_file, (1000, 1000))
    with pytest.raises(ConfigError), guards.undone_if_refused(run, run.config(), new=False):
        run.begin_alive(2)
        raise ConfigError("no GPU")
    assert run.alive_file.stat().st_mtime == 1000


def test_a_timeline_is_no_record_of_a_resume(run):
    (run.path / "timeline_1.json").write_bytes(b"[" * 10)
    with pytest.raises(ConfigError, match="no GPU"), guards.undone_if_refused(run, run.config(), new=False):
        (run.path / "timeline_1.json").write_bytes(b"[" * 20)
        raise ConfigError("no GPU")
    assert len((run.path / "timeline_1.json").read_bytes()) == 20


def test_a_run_that_vanishes_while_runs_are_listed_is_left_out(tmp_path, monkeypatch):
    kept, gone = (create(from_dict({"runs": str(tmp_path), "name": name})) for name in "ab")
    stat = type(kept.path).stat

    def vanishing(path, **options):
        if path == gone.path:
            raise FileNotFoundError(path)
        return stat(path, **options)

    monkeypatch.setattr(type(kept.path), "stat", vanishing)
    assert [run.path for run in runs_of(tmp_path, "train")] == [kept.path]


def test_runs_of_one_second_have_different_names(tmp_path):
    config = from_dict({"runs": str(tmp_path), "name": "a"})
    names = [create(config, now=0).path.name for _ in range(3)]
    assert names[1:] == [f"{names[0]}-2", f"{names[0]}-3"]
    assert names[0].endswith("_a")


def test_config_round_trip(tmp_path):
    config = from_dict({"runs": str(tmp_path), "seed": 5, "optimizer": {"lr": 1e-5, "params": {"beta1": 0.5}}})
    assert create(config).config() == config


def test_folder_without_config_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=f"^{tmp_path} is no run directory: [^\n]*$"):
        RunDir(tmp_path).config()


@pytest.mark.parametrize("text", ["", "5", "[1, 2]"])
def test_damaged_config_is_refused(run, text):
    (run.path / "config.yaml").write_text(text)
    with pytest.raises(ConfigError, match=f"^{run.path}/config.yaml is damaged: expected settings$"):
        run.config()


def test_unwritable_runs_folder_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    message = r"^runs=.*/file: can't write a run directory there \(Not a directory\); make room, or set"
    with pytest.raises(ConfigError, match=message):
        create(from_dict({"runs": str(tmp_path / "file")}))


def test_runs_are_found_newest_first(tmp_path):
    config = from_dict({"runs": str(tmp_path)})
    made = [create(config, now=n) for n in range(3)]
    for age, run in enumerate(made):
        os.utime(run.path, (1000 - age, 1000 - age))
    assert [run.path for run in runs_of(tmp_path, "train")] == [run.path for run in made]


def test_latest_is_newest_finished_run_with_best_checkpoint(tmp_path):
    config = from_dict({"runs": str(tmp_path)})
    for age, (state, best) in enumerate([(FAILED, True), (FINISHED, False), (FINISHED, True), (FINISHED, True)]):
        run = create(config, now=age)
        run.write("status.json", {"state": state})
        if best:
            run.write("best.json", {"step": 1, "val/top1": 50.0, "checkpoint": "checkpoints/000000001"})
        os.utime(run.path, (1000 - age, 1000 - age))
    assert latest_trained(tmp_path).path == runs_of(tmp_path, "train")[2].path


def test_latest_without_finished_run_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"^model.pretrained=latest: no finished training run under "):
        latest_trained(tmp_path)


def test_json_files_are_replaced_atomically(run):
    run.write("status.json", {"state": "RUNNING"})
    run.write("status.json", {"state": "FINISHED"})
    assert run.read("status.json") == {"state": "FINISHED"}
    assert not [name for name in os.listdir(run.path) if name.startswith(".")]


def test_missing_records_are_empty(run):
    assert (run.read("best.json"), run.status(), run.summary(), run.rank_status(0, 1)) == (None, None, None, None)
    assert (run.plan(), run.state, run.attempts, run.figures) == (Plan(), None, (), {})
    assert list(run.lines()) == run.history() == []


def test_plan_round_trip(run):
    plan = Plan(
        sizes=make_sizes(2), splits=make_splits(train=9), hosts=(Host("10.0.0.2", 2, "a", here=True),),
        scheduler=Address("10.0.0.2", 1234), class_names=("x", "y"), device="cpu",
        origin=Origin("file", {"w.params": "abc"}, input={"mean": [1.0, 2.0, 3.0]}),
        input=InputChange({"image_size": 224}, {"image_size": 32}),
    )  # fmt: skip
    run.save(plan)
    assert run.plan() == plan and run.read("plan.json")["schema_version"] == 2


@pytest.mark.parametrize(
    "text, message",
    [
        ('{"state": "RUN', "status.json is damaged: Unterminated string"),
        ("[]", "status.json is damaged: expected a JSON object"),
        ('{"attempts": [{"started_ms": 1}]}', r"status.json is damaged: attempts\[0\].attempt is missing"),
        ('{"attempts": [{"attempt": "1", "started_ms": 1}]}', r"damaged: attempts\[0\].attempt='1': expected a whole"),
        ('{"schema_version": 3}', "status.json has schema version 3, this mxscale reads up to 2; use a newer mxscale"),
    ],
)
def test_damaged_or_newer_record_is_refused(run, text, message):
    (run.path / "status.json").write_text(text)
    with pytest.raises(ConfigError, match=message):
        run.status()


def test_status_keeps_attempts_and_ignores_unknown_keys(run):
    run.write("status.json", {"state": FINISHED, "attempts": [{"attempt": 1, "started_ms": 5}], "of another": 1})
    run.save(run.status().with_attempt(ended_ms=9, ranks=2))
    assert run.attempts == (Attempt(1, 5, ranks=2, ended_ms=9),) and run.state == FINISHED


def test_stop_request_has_reason(run):
    assert run.stop_reason() is None
    run.ask_to_stop("signal SIGTERM")
    assert run.stop_reason() == "signal SIGTERM"


def test_torn_and_invalid_lines_are_ignored(run):
    write_lines(run, (1, 1, {"lr": 0.1}))
    with open(run.metrics_file, "ab") as file:
        file.write(b'null\n[1]\n{"step":1}\n\xff\xfe\n')
        file.write(
            b'{"attempt":1,"step":2,"time_ms":5,"metrics":5}\n{"attempt":1,"step":"2","time_ms":5,"metrics":{}}\n'
        )
        file.write(b'{"attempt":1,"step":2,"time_ms":5,"metrics":{"lr"')
    assert [line["step"] for line in run.lines()] == [1]


def lrs(attempt, values):
    return [(attempt, step, {"lr": lr}) for step, lr in values.items()]


LOSS, VAL = {"train/loss": 1.0}, {"val/top1": 60.0}


@pytest.mark.parametrize(
    "lines, kept",
    [
        (
            [*lrs(1, {1: 0.1, 2: 0.2, 3: 0.3}), *lrs(2, {2: 2.2, 3: 2.3, 4: 2.4}), *lrs(3, {4: 3.4})],
            [*lrs(1, {1: 0.1}), *lrs(2, {2: 2.2, 3: 2.3}), *lrs(3, {4: 3.4})],
        ),
        ([*lrs(2, {1: 2.0}), *lrs(1, {1: 1.0})], lrs(2, {1: 2.0})),
        ([(1, 5, LOSS), (1, 5, {"val/top1": 50.0}), (2, 5, LOSS), (2, 5, VAL)], [(2, 5, LOSS), (2, 5, VAL)]),
        (
            [*lrs(1, {2: 1.0, 4: 1.0, 6: 1.0}), *lrs(2, {5: 2.0, 10: 2.0})],
            [*lrs(1, {2: 1.0, 4: 1.0}), *lrs(2, {5: 2.0, 10: 2.0})],
        ),
        ([(1, 50, {**LOSS, "time/compute": 0.1}), (2, 50, {"train/loss": 2.0})], [(2, 50, {"train/loss": 2.0})]),
        ([(1, 5, LOSS), (2, 5, VAL), (2, 6, LOSS)], [(1, 5, LOSS), (2, 5, VAL), (2, 6, LOSS)]),
    ],
    ids=["highest attempt", "order in file", "training and validation", "from its first line", "repeated step",
         "starts with validation"],
)  # fmt: skip
def test_later_attempt_replaces_lines_of_the_same_steps(run, lines, kept):
    write_lines(run, *lines)
    assert [(line["attempt"], line["step"], line["metrics"]) for line in run.history()] == kept


def test_exit_statuses_are_as_documented():
    assert (DONE, FAILURE, REFUSED, INTERRUPTED) == (0, 1, 2, 75)
