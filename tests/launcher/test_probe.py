"""comm=auto: the choice from given figures, and one trial on real ranks."""

import sys
import time

import pytest
from in_process import prepared
from plans import make_sizes

from mxscale.config.schema import from_dict
from mxscale.launcher import backend_probe, commands, setup
from mxscale.launcher.context import Signals
from mxscale.rundir.directory import RunDir
from mxscale.rundir.plan import Host, Plan
from mxscale.util.errors import ConfigError

FIGURES = {
    "horovod-gloo": {"seconds": 0.0042, "between": [0.004, 0.006], "times": 10},
    "horovod-mpi": {"no": "there is no mpirun on the PATH"},
    "device": {"seconds": 0.0021, "between": [0.002, 0.003], "times": 10},
}


def test_the_fastest_is_taken_and_compared_with_the_next():
    assert backend_probe.choose(FIGURES) == "device"
    assert backend_probe.reason(FIGURES, "device") == "device: 2.1 ms an exchange, against 4.2 ms of horovod-gloo"


def test_a_failed_candidate_is_never_taken():
    assert backend_probe.choose({"horovod-mpi": FIGURES["horovod-mpi"]}) is None
    alone = {name: FIGURES[name] for name in ("horovod-gloo", "horovod-mpi")}
    assert backend_probe.choose(alone) == "horovod-gloo"
    assert backend_probe.reason(alone, "horovod-gloo").endswith("the only one that works here")


def test_of_equals_the_first_is_taken():
    assert backend_probe.choose({"a": FIGURES["device"], "b": FIGURES["device"]}) == "a"


def test_the_table_lists_figures_or_reasons():
    assert backend_probe.table(FIGURES, "device").splitlines() == [
        "  horovod-gloo  4.2 ms (4.0 to 6.0, 10 times)",
        "  horovod-mpi   no: there is no mpirun on the PATH",
        "  device        2.1 ms (2.0 to 3.0, 10 times)   <- chosen",
    ]


def settled(tmp_path, ranks, known=None, **values):
    run = RunDir(tmp_path)
    hosts = (Host("b", 1, "b"),) if "launch" in values else ()
    run.write_plan(Plan(sizes=make_sizes(ranks), hosts=hosts))
    if known:
        run.write(backend_probe.RECORD, {"chosen": known, "reason": ""})
    return backend_probe.settle(
        run, from_dict({"comm": {"backend": "auto", **values.pop("comm", {})}, **values}), 1, Signals()
    )


def test_one_rank_is_local_or_horovods_on_another_host(tmp_path):
    assert settled(tmp_path, 1).comm.backend == "local" == RunDir(tmp_path).config().comm.backend
    assert settled(tmp_path, 1, launch={"hosts": ["b:1"]}).comm.backend == "horovod"


def test_settings_invalid_with_the_choice_are_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"comm\.timeline=true with comm=local"):
        settled(tmp_path, 1, comm={"timeline": True})
    assert not (tmp_path / backend_probe.RECORD).exists()


def test_a_recorded_choice_that_is_now_invalid_is_replaced(tmp_path):
    assert settled(tmp_path, 2, known={"backend": "device"}).comm.backend == "device"
    assert settled(tmp_path, 1, known={"backend": "device"}, launch={"hosts": ["b:1"]}).comm.backend == "horovod"


def command(code):
    return [commands.Command([sys.executable, "-c", code], {"PATH": "/usr/bin:/bin"})]


def test_a_slow_trial_is_ended_and_reported(tmp_path):
    began = time.monotonic()
    found = backend_probe.measured(RunDir(tmp_path), "slow", command("import time; time.sleep(600)"), 0.5, Signals())
    assert found == {"no": "not finished in 0.5 s (comm.probe_s)"}
    assert time.monotonic() - began < 300


def test_a_failed_trial_is_reported_with_status_and_log(tmp_path):
    failing = command("import sys; sys.exit('no such thing')")
    found = backend_probe.measured(RunDir(tmp_path), "bad", failing, 20, Signals())
    assert "status 1" in found["no"] and str(tmp_path / "probe" / "bad.log") in found["no"]
    assert "no such thing" in (tmp_path / "probe" / "bad.log").read_text()


def test_a_signal_ends_a_trial(tmp_path):
    signals = Signals()
    signals.reason = "SIGTERM"
    found = backend_probe.measured(RunDir(tmp_path), "slow", command("import time; time.sleep(60)"), 60, signals)
    assert found == {"no": "SIGTERM"}


def test_a_chosen_back_end_stays(tmp_path):
    config = from_dict({"comm": {"backend": "horovod"}})
    assert backend_probe.settle(RunDir(tmp_path), config, 1, Signals()) is config
    assert not (tmp_path / backend_probe.RECORD).exists()


def test_a_resumed_run_keeps_the_choice_without_a_trial(tmp_path):
    run = RunDir(tmp_path)
    run.write_plan(Plan(sizes=make_sizes(2)))
    record = {"chosen": {"backend": "horovod", "transport": "mpi"}, "figures": FIGURES, "reason": "it was fastest"}
    run.write(backend_probe.RECORD, record)
    settled = backend_probe.settle(run, from_dict({"comm": {"backend": "auto"}}), 2, Signals())
    assert (settled.comm.backend, settled.comm.transport) == ("horovod", "mpi")
    assert run.config() == settled and run.read(backend_probe.RECORD) == record


@pytest.mark.slow
def test_the_fastest_of_real_trials_is_taken(tmp_path, data_cache, monkeypatch, capsys):
    run = prepared(tmp_path, "comm=auto", "launch.ranks=2", f"data.cache={data_cache}")
    for name in ("horovod-mpi", "parameter_server"):  # to save seconds
        monkeypatch.delitem(backend_probe.CANDIDATES, name)
    run.begin_alive(1)
    settled = backend_probe.settle(run, run.config(), 1, Signals())
    record = run.read(backend_probe.RECORD)
    figures = record["figures"]
    assert figures["horovod-gloo"]["seconds"] > 0 and "share the cores" in figures["device"]["no"]
    assert "built without NCCL" in figures["nccl"]["no"]
    assert record["chosen"] == backend_probe.CANDIDATES[backend_probe.choose(figures)]
    assert settled.comm.backend == record["chosen"]["backend"] and run.config() == settled
    assert "<- chosen" in capsys.readouterr().out
    assert record["reason"] in setup.describe_exchange(run, settled, run.plan())


@pytest.mark.slow
def test_run_trains_with_the_choice_and_records_figures(cli):
    ended = cli("train", "comm=auto", "launch.ranks=1", "max_steps=1")
    assert ended.run.config().comm.backend == "local"
    record = ended.run.read(backend_probe.RECORD)
    assert ended.run.read("environment.json")["probe"] == record
    assert f"chosen by comm=auto ({record['reason']})" in ended.out
