"""The signature of a run."""

import pytest

from mxscale.config.schema import from_dict
from mxscale.config.signature import UNSIGNED, signature, within, without
from mxscale.records import recorded

DIGESTS = ("data", None)


def test_the_signature_includes_machine_seed_and_digests():
    plain = signature(from_dict({}), *DIGESTS)
    assert len(plain) == 64
    others = [
        from_dict({"seed": 2}),
        from_dict({"machine": {"provider": "aws"}}),
        from_dict({"launch": {"ranks": 2}}),
        from_dict({"optimizer": {"lr": 0.2}}),
    ]
    different = {plain, *(signature(config, *DIGESTS) for config in others)}
    different |= {signature(from_dict({}), "other data", None), signature(from_dict({}), "data", "weights")}
    assert len(different) == 7


def test_the_signature_is_that_of_earlier_versions():
    """Runs are compared by it, those of versions with settings that were removed included."""
    assert signature(from_dict({}), "d", None) == "71f6cd27de351cebce85e2391baa0292daf028d15e1d9273ed87b3faa8dab566"


@pytest.mark.parametrize(
    "values",
    [
        {"tracking": {"enabled": False}},
        {"resume": "runs/train/x"},
        {"runs": "/elsewhere"},
        {"name": "other"},
        {"launch": {"stop_grace_s": 5}},
        {"data": {"root": "/x", "cache": "/y"}},
        {"model": {"pretrained": "/z"}},
        {"budget": {"max_usd": 3.0}, "machine": {"prices": "x.csv", "gco2_per_kwh": 380.0}},
    ],
)
def test_the_signature_ignores_paths_and_records(values):
    assert signature(from_dict(values), *DIGESTS) == signature(from_dict({}), *DIGESTS)


@pytest.mark.parametrize(
    "key, names, expected",
    [("data.root", ["data"], True), ("data", ["data"], True), ("data.root", ["data.root"], True),
     ("data_root", ["data"], False), ("data", ["data.root"], False), ("data.rootless", ["data.root"], False)],
)  # fmt: skip
def test_within(key, names, expected):
    assert within(key, names) == expected


def test_without_ignores_missing_settings():
    values = {"a": {"b": 1, "c": 2}, "d": 3, "e": 4, "h": {"i": 5}}
    assert without(values, ["a.b", "d", "a.missing", "f", "e.g", "h"]) == {"a": {"c": 2}, "e": 4}


def test_unsigned_settings_do_not_separate_report_rows():
    params = {name: "x" for name in UNSIGNED} | {"data.root": "/x", "seed": "1", "optimizer.lr": "0.1"}
    run = recorded.Recorded("1", "a", "FINISHED", params, {}, {}, {})
    assert recorded.settings(run) == {"optimizer.lr": "0.1"}
