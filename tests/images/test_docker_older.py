"""The test suite in an image with MXNet 1.5.0, whose API mxnet-cu90 has.

Its own file runs in parallel with the other tests of images.
"""

import re

from docker_engine import NEEDS_ENGINE, sh
from repository import ROOT, name_of

pytestmark = NEEDS_ENGINE


def test_suite_passes_with_mxnet_1_5():
    older = ["--target", "test", "--build-arg", "MXNET=mxnet==1.5.0", "-t", "mxscale:test-1.5.0"]
    sh("docker", "build", *older, ".", timeout=1500)
    reach = r"^ *(from|import) (mxnet|mxscale\.(models|train|distributed))\b"  # packages that call MXNet
    tests = {name_of(path): path.read_text() for path in sorted(ROOT.glob("tests/*/test_*.py"))}
    del tests["tests/cli/test_bad_input.py"]  # takes minutes and rarely calls MXNet
    files = [name for name, text in tests.items() if re.search(reach, text, re.MULTILINE)]
    files.append("tests/diagnose/test_rates.py")  # the readers of each MXNet
    words = ["python", "-m", "pytest", "-q", "-n", "auto", "-p", "no:cacheprovider", "-m", "not slow and not docker"]
    out, _ = sh("docker", "run", "--rm", "mxscale:test-1.5.0", *words, *files, timeout=1800)
    assert "MXNet 1.5 has no LAMB" in out and re.search(r"\d{3,} passed", out) and "failed" not in out
