"""EfficientNet-Lite against PyTorch: `make test-reference`. Without PyTorch: test_efficientnet_lite.py."""

import mxnet as mx
import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: make test-reference brings it")

from torch_lite import EfficientNetLite, randomised  # noqa: E402
from torch_state import images  # noqa: E402

from mxscale.models import convert, downloads, weights, zoo  # noqa: E402
from mxscale.util.errors import ConfigError  # noqa: E402

pytestmark = pytest.mark.slow


def logits(path, number, classes, given):
    """Return this project's scores with the weights of a file."""
    name = f"efficientnet_lite{number}"
    net = zoo.build(name, classes)
    zoo.initialise(net, 0, mx.cpu(), zero_gamma=False)
    arrays = convert.load(str(path), name)
    zoo.finish(net, given.shape, mx.cpu())
    weights.fit(net, {n: mx.nd.array(a) for n, a in arrays.items()}, str(path), "keep")
    return net(mx.nd.array(given)).asnumpy()


def agrees(found, theirs, given):
    with torch.no_grad():
        want = theirs(torch.from_numpy(given)).numpy()
    assert np.abs(found - want).max() < 1e-4 * (want.max() - want.min())


@pytest.mark.parametrize("side", [64, 75], ids=["even", "odd"])
@pytest.mark.parametrize("number", range(5))
def test_logits_agree_to_1e_4_of_their_range(number, side, tmp_path):
    theirs, given = randomised(number), images(2, side)
    torch.save(theirs.state_dict(), tmp_path / "w.pth")
    agrees(logits(tmp_path / "w.pth", number, 10, given), theirs, given)


@pytest.mark.parametrize("number, side", [(0, 224), (1, 240), (2, 260)])
def test_published_weights_agree_to_1e_4_of_the_range(number, side):
    try:
        path = downloads.imagenet(f"efficientnet_lite{number}")
    except ConfigError as error:
        pytest.skip(str(error))
    theirs, given = EfficientNetLite(number, 1000).eval(), images(2, side)
    theirs.load_state_dict(torch.load(path, weights_only=True))
    agrees(logits(path, number, 1000, given), theirs, given)
