"""One step of a network from a file, in a process of its own: `python -m mxscale.models.graph_trial SIDE`.

MXNet trusts a graph's attributes: some values end its process by a signal, others fail at the first image only.
"""

import json
import re
import resource
import subprocess
import sys

import mxnet as mx
import psutil

from mxscale.config.networks import SYMBOL
from mxscale.environment.container_limits import available_memory
from mxscale.models import zoo
from mxscale.util.errors import ConfigError, signal_name

CPP_STACK = re.compile(r"\s*\[bt\]|Stack trace")  # MXNet 1.5 prints it after the message
LIMIT_S = 120  # of processor time; a ResNet-152 takes about 5 s


def check(saved, side: int, source: str) -> None:
    """Raise ConfigError if MXNet cannot run what `symbol.build` takes on an image of `side` pixels."""
    command = [sys.executable, "-m", __name__, str(side)]
    ended = subprocess.run(command, input=json.dumps(saved), capture_output=True, text=True, errors="replace")
    if not ended.returncode:
        return
    lines = [line.strip() for line in ended.stderr.splitlines() if line.strip() and not CPP_STACK.match(line)]
    reason = (lines or ["no message"])[-1].rpartition("Error: ")[2][:300]
    if ended.returncode < 0:
        reason = f"it ends by {signal_name(-ended.returncode)}"
    raise ConfigError(f"model.pretrained={source}: MXNet cannot run its graph on images of {side} pixels: {reason}")


def main(side: int) -> None:
    """Compute the gradients of one image by the graph on stdin."""
    in_use = psutil.Process().memory_info().vms
    bound(resource.RLIMIT_AS, in_use + available_memory())
    bound(resource.RLIMIT_CPU, LIMIT_S)
    bound(resource.RLIMIT_CORE, 0)
    net, shape = zoo.build(SYMBOL, 2, json.load(sys.stdin)), (1, 3, side, side)
    zoo.initialise(net, 0, mx.cpu(), zero_gamma=False)
    zoo.finish(net, shape, mx.cpu())
    with mx.autograd.record():
        scores = net(mx.nd.zeros(shape))
    scores.backward()
    mx.nd.waitall()


def bound(limit: int, most: int) -> None:
    """Set a limit of this process to `most`, or keep a lower one that `ulimit` has set."""
    hard = resource.getrlimit(limit)[1]
    most = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(limit, (most, most))


if __name__ == "__main__":
    main(int(sys.argv[1]))
