"""Number formats, and which ones this MXNet supports."""

import mxnet as mx
import pytest

from mxscale.train.precision import check
from mxscale.util.errors import ConfigError


def test_amp_of_mxnet_1_5_is_refused(monkeypatch):
    monkeypatch.setattr(mx, "__version__", "1.5.0")
    message = r"^precision=amp: MXNet 1\.5\.0 cannot resume with it; use precision=float16, or"
    with pytest.raises(ConfigError, match=message):
        check("amp")


@pytest.mark.parametrize("version, precision", [("1.9.1", "amp"), ("1.5.0", "float16"), ("1.5.0", "float32")])
def test_other_precisions_are_accepted(monkeypatch, version, precision):
    monkeypatch.setattr(mx, "__version__", version)
    check(precision)
