"""The energy of a run by its samples or machine.watts, over all its attempts."""

import json

import pytest
from plans import make_sizes
from tracked_runs import end, make_run

from mxscale.environment.energy import NVML, RAPL, TDP
from mxscale.environment.hosts import Host
from mxscale.records import energy, summary
from mxscale.rundir.directory import SYSTEM
from mxscale.rundir.plan import Plan
from mxscale.tracking import payload

HOUR_MS = 3_600_000
KWH = 3.6e6  # joules


@pytest.fixture
def made(tmp_path):
    """Return the function that makes a run of attempts of an hour each, given the energy of their samples."""

    def make(*attempts, device="cpu", hosts=(), nodes=1, **machine):
        run = make_run(tmp_path, machine=machine)
        run.save(Plan(sizes=make_sizes(2), device=device, hosts=hosts))
        ended = [
            {"attempt": number, "started_ms": 0, "ended_ms": HOUR_MS, "ranks": 2, "nodes": nodes}
            for number in range(1, len(attempts) + 1)
        ]
        run.write("status.json", {"state": "FINISHED", "attempts": ended})
        with open(run.path / SYSTEM, "w") as file:
            for number, samples in enumerate(attempts, start=1):
                for step, sample in enumerate(samples):
                    metrics = {f"system/{name}": value for name, value in sample.items()}
                    line = {"attempt": number, "step": step, "time_ms": 0, "metrics": metrics}
                    file.write(json.dumps(line) + "\n")
        return run

    return make


def figures(run):
    known, source = energy.figures(run, len(run.attempts), HOUR_MS)
    return known.get("energy/kwh"), source


def test_a_resumed_run_adds_up_its_samples(made):
    run = made([{RAPL: KWH}, {RAPL: KWH}], [{RAPL: KWH / 2}, {}])
    assert figures(run) == (pytest.approx(2.5), "RAPL")


def test_an_attempt_without_samples_makes_the_energy_unknown(made):
    assert figures(made([], [{RAPL: KWH}])) == (None, None)
    assert figures(made([{"cpu_utilization_percentage": 50.0}])) == (None, None)


@pytest.mark.parametrize(
    "device, sample, source",
    [("gpu", {NVML: KWH, RAPL: KWH}, "NVML + RAPL"), ("gpu", {NVML: KWH, TDP: KWH}, "NVML + TDP x use"),
     ("gpu", {NVML: 2 * KWH}, "NVML (GPUs alone)"), ("cpu", {TDP: 2 * KWH}, "TDP x use")],
)  # fmt: skip
def test_the_source_names_what_was_measured(made, device, sample, source):
    assert figures(made([sample], device=device)) == (pytest.approx(2.0), source)


@pytest.mark.parametrize("device, sample", [("gpu", {RAPL: KWH}), ("cpu", {NVML: KWH})])
def test_energy_of_other_devices_is_not_that_of_a_run(made, device, sample):
    assert figures(made([sample], device=device)) == (None, None)


def test_attempts_on_unequal_machines_name_both_sources(made):
    run = made([{NVML: KWH, RAPL: KWH}], [{NVML: KWH}], device="gpu")
    assert figures(run) == (pytest.approx(3.0), "NVML (GPUs alone), NVML + RAPL")


def test_machine_watts_times_time_of_all_machines(made):
    assert figures(made([{}], [{}], watts=500.0, nodes=3)) == (pytest.approx(2 * 3 * 0.5), "machine.watts")


def test_machine_watts_precede_estimates_and_gpus_alone_but_not_rapl(made):
    assert figures(made([{TDP: KWH}], watts=500.0)) == (pytest.approx(0.5), "machine.watts")
    assert figures(made([{NVML: KWH}], device="gpu", watts=500.0))[1] == "machine.watts"
    assert figures(made([{RAPL: KWH}], watts=500.0)) == (pytest.approx(1.0), "RAPL")


def test_watts_of_zero_are_a_price_and_no_estimate(made):
    assert figures(made([{}], watts=0.0)) == (None, None)


def test_samples_of_one_machine_are_not_those_of_several(made):
    assert figures(made([{RAPL: KWH}], hosts=(Host("10.0.0.2", 2, "b"),))) == (None, None)
    assert figures(made([{RAPL: KWH}], nodes=2)) == (None, None)
    here = Host("10.0.0.1", 2, "a", here=True)
    assert figures(made([{RAPL: KWH}], hosts=(here,))) == (pytest.approx(1.0), "RAPL")


def test_co2_needs_the_carbon_intensity(made):
    known, _ = energy.figures(made([{RAPL: 2 * KWH}], gco2_per_kwh=380.0), 1, HOUR_MS)
    assert known == {"energy/kwh": pytest.approx(2.0), "co2/kg": pytest.approx(0.76)}


def test_summary_table_and_mlflow_name_the_source(made):
    run = made([{RAPL: 2 * KWH}], gco2_per_kwh=380.0)
    run.save(summary.summarise(run, 1))
    assert {"energy/kwh", "co2/kg"} <= {name for name, *_ in payload.summary(run)}
    assert "2 kWh (RAPL)" in summary.table(run) and "0.76 kg" in summary.table(run)
    assert payload.tags(run)["energy.source"] == "RAPL"


def test_an_unknown_energy_is_not_recorded(made):
    run = made([{}], gco2_per_kwh=380.0)
    run.save(summary.summarise(run, 1))
    assert not {"energy/kwh", "co2/kg"} & set(run.figures)
    assert "kWh" not in summary.table(run) and "energy.source" not in payload.tags(run)


def test_a_summary_of_an_earlier_version_has_no_source(made):
    run = made([{}])
    end(run)
    assert run.summary().energy_source is None
