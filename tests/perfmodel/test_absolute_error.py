"""Errors of absolute predictions, each published source predicted without itself."""

from dataclasses import replace

import numpy as np
import pytest

from mxscale.perfmodel import hardware, layers, rates
from mxscale.perfmodel.published import absolute
from mxscale.perfmodel.published import rows as published
from mxscale.util import csv_tables


@pytest.fixture(scope="module")
def points():
    return [point for name in published.TABLES for point in published.of_package(name)]


@pytest.fixture(scope="module")
def found(points):
    return absolute.predict(points)


def test_no_prediction_uses_its_own_source(found):
    assert len(found) > 250
    for one in found:
        assert one.point.source not in one.source


def test_other_rates_of_the_source_change_nothing(points, found, monkeypatch):
    """All rates of a source, in the tables that the model reads, are multiplied by 100."""
    faked = [replace(point, rate=100 * point.rate) if point.source == "nv-dle-mxnet" else point for point in points]
    monkeypatch.setattr(
        rates, "_single", lambda: [one for one in faked if one.devices == 1 and one.batch and not one.flag]
    )
    # FLOP/s of this source as well; other sources are predicted from them, and not compared here
    known = hardware.device("V100")
    monkeypatch.setitem(known, "resnet50_fp32", 100 * known["resnet50_fp32"])
    mine = [one.images_per_s for one in found if one.point.source == "nv-dle-mxnet"]
    again = absolute.predict([point for point in points if point.source == "nv-dle-mxnet"])
    assert [one.images_per_s for one in again] == pytest.approx(mine) and mine


def test_computed_rate_leaves_out_the_source_of_its_flops():
    vgg = layers.network("vgg16")
    shared = rates.computed(vgg, "V100-16GB", 64, "float32")
    without = rates.computed(vgg, "V100-16GB", 64, "float32", without="nv-dle-mxnet")
    assert shared.images_per_s != without.images_per_s
    assert shared.kind == without.kind == "computed"


def test_each_achieved_rate_names_its_published_source(points):
    sources = {point.source for point in points}
    cited = [row["source"] for row in csv_tables.read("hardware") if row["quantity"].startswith("resnet50_")]
    assert cited and all(any(name in text for name in sources) for text in cited)


def test_errors_follow_from_the_tables(found):
    for kind in absolute.KINDS:
        percent = [abs(one.images_per_s / one.point.rate - 1) * 100 for one in found if one.kind == kind]
        off = absolute.errors()[kind]
        assert off["rows"] == len(percent) > 20
        assert (off["median"], off["p90"]) == pytest.approx((np.median(percent), np.percentile(percent, 90)))
        assert f"median {off['median']:.0f} %, 90 % within {off['p90']:.0f} %" in absolute.describe(kind)


def test_computed_rates_have_the_larger_error():
    both = absolute.errors()
    assert both["computed"]["median"] > 2 * both["published"]["median"]


def test_measured_and_given_rates_have_no_error_of_the_tables():
    assert absolute.describe("measured") == absolute.describe("given") == ""


def test_error_includes_the_base_rate(found):
    """It exceeds the error of the same rows given the first rate of their series."""
    from mxscale.perfmodel.published import score

    scaled = score.summary(score.predict(score.evidence()))
    several = absolute.summary([one.error for one in found if one.point.devices > 1])
    assert several["median"] > scaled["median"]


def test_constants_without_the_source_can_be_given(points):
    asked = []
    absolute.predict(points, lambda source: asked.append(source) or hardware.priors())
    assert "mlperf-v0.6" in asked
