"""The fit of the performance model, its errors, and absolute predictions of each source without itself."""

from dataclasses import replace

import numpy as np
import pytest

from mxscale.perfmodel import hardware, rates
from mxscale.perfmodel.published import rows as published
from mxscale.perfmodel.published import score
from mxscale.util import csv_tables
from tools import scaling_model


@pytest.fixture(scope="module")
def points():
    return [point for name in published.TABLES for point in published.of_package(name)]


@pytest.fixture(scope="module")
def found(points):
    return scaling_model.absolute(points)


@pytest.mark.slow
def test_no_prediction_uses_its_own_source(found):
    assert len(found) > 250
    for one in found:
        assert one.point.source not in one.source
    for source in {point.source for point in rates.single()}:
        assert scaling_model.alone_without(source) != hardware.constants()


@pytest.mark.slow
def test_other_rates_of_the_source_change_nothing(points, found, monkeypatch):
    """All rates of a source, in the tables that the model reads, are multiplied by 100."""
    faked = [replace(point, rate=100 * point.rate) if point.source == "nv-dle-mxnet" else point for point in points]
    monkeypatch.setattr(
        rates, "single", lambda: [one for one in faked if one.devices == 1 and one.batch and not one.flag]
    )
    scaling_model.alone_without.cache_clear()
    mine = [one.images_per_s for one in found if one.point.source == "nv-dle-mxnet"]
    again = scaling_model.absolute([point for point in points if point.source == "nv-dle-mxnet"])
    assert [one.images_per_s for one in again] == pytest.approx(mine) and mine


@pytest.mark.slow
def test_errors_of_the_table_are_those_of_the_model_and_within_the_goal():
    for name, values in scaling_model.errors().items():
        assert hardware.errors(name) == pytest.approx(values, rel=0.001)
    rows, pairs = scaling_model.left_out("source"), scaling_model.evidence()
    assert (len(rows), {row["source"] for row in rows}) == (613, {target.source for _, target in pairs})
    first = {target.source for _, target in scaling_model.evidence(["published_scaling"])}
    of_first = score.summary([row for row in rows if row["source"] in first])
    assert of_first["rows"] == 107 and of_first["mean"] <= 10
    scaling = hardware.errors("scaling")
    assert scaling["median"] <= 4.5 and scaling["mean"] <= 9
    limits = {hardware.scaling_class(8, 64, rdma=False): 12, hardware.scaling_class(64, 512, rdma=True): 15}
    assert all(hardware.errors(kind)["median"] <= limit for kind, limit in limits.items())


@pytest.mark.slow
def test_absolute_errors_stay_below_the_recorded_ones(found):
    """The goal of a median of 15 % is met, that of 90 % within 50 % is missed (docs/scaling-model.md)."""
    assert np.median([one.error for one in found]) < 12 and np.percentile([one.error for one in found], 90) < 56


def test_a_plan_states_the_errors_of_its_kinds():
    assert "published rate: median 12 %, 90 % within 54 % (521 rows" in rates.Rate(1.0, "", "published").error
    assert rates.Rate(1.0, "", "measured").error == rates.Rate(1.0, "").error == ""
    kinds = [hardware.scaling_class(*size) for size in ((1, 8, False), (2, 16, False), (2, 16, True), (63, 504, True))]
    assert len(set(kinds)) == 4 and all(hardware.errors(kind) for kind in kinds)


@pytest.mark.parametrize(
    "kind, row",
    [
        ("scaling of one node", {"nodes": 1}),
        ("scaling over TCP", {"comm": "horovod/NCCL, TCP (Azure eth0)"}),
        ("scaling over RDMA", {"network_gbps": 100.0}),
        ("scaling over an unstated network", {}),
        ("scaling of over 500 devices", {"nodes": 64, "devices": 512}),
    ],
)
def test_a_row_belongs_to_a_kind_of_machines(points, kind, row):
    stated = replace(points[0], gpu="V100", comm="horovod/NCCL", nodes=2, devices=8, network_gbps=None, stated={})
    assert scaling_model.class_of(replace(stated, **row)) == kind


@pytest.mark.slow
def test_error_includes_the_base_rate(found):
    """It exceeds the error of the same rows given the first rate of their series."""
    scaled = score.summary(score.predict(scaling_model.evidence()))
    assert np.median([one.error for one in found if one.point.devices > 1]) > scaled["median"]


@pytest.mark.slow
def test_constants_fit_the_published_rows():
    """The table holds the result of the fit from the priors, to three digits."""
    fitted = {**scaling_model.fit(scaling_model.evidence()), **scaling_model.fit_alone(rates.single())}
    assert fitted == pytest.approx(hardware.constants(), rel=0.01)


def test_every_constant_has_a_source_and_a_prior():
    rows = csv_tables.read("hardware")
    assert all(row["source"] for row in rows)
    assert {*scaling_model.priors(alone=True), *scaling_model.priors(alone=False)} == set(hardware.constants())
    assert {row["kind"] for row in rows} == {"device", "link", "network", "other", "prior", "fitted", "error"}


def test_figure_is_drawn(tmp_path):
    scaling_model.draw(score.score(str(csv_tables.FOLDER / "published_scaling.csv")), str(tmp_path / "figure.png"))
    assert (tmp_path / "figure.png").read_bytes()[:4] == b"\x89PNG"
