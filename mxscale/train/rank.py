"""The process of one rank: `python -m mxscale.train.rank RUN_DIR ATTEMPT`, started by the launcher.

It reads what the parent and the preparation wrote (config.yaml, plan.json), runs the training loop of trainer.py and
records the outcome in ranks/<r>.json.
"""

import signal
import sys

if __name__ == "__main__":
    # Importing MXNet installs a handler of SIGSEGV that calls exit(), which can wait for its own threads. While the
    # signal is blocked, a crash ends the process at once; main() restores the default.
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGSEGV])

import faulthandler
import os
import time
import traceback

from mxscale.distributed.communicators import open_communicator
from mxscale.distributed.heartbeat import Heartbeat, end_with_parent, rank_from_environment
from mxscale.distributed.peer_loss import follows_from_lost_peer
from mxscale.rundir.directory import RunDir
from mxscale.rundir.status import FAILURE, REFUSED, RankStatus
from mxscale.train.checkpointer import NotFinite
from mxscale.train.trainer import Trainer
from mxscale.util.errors import ConfigError


def main(run_path: str, attempt: int) -> int:
    """Run one rank and record its outcome in ranks/<r>.json.

    Returns:
        The exit status of the process.
    """
    run = RunDir(run_path)
    signal.signal(signal.SIGSEGV, signal.SIG_DFL)  # instead of MXNet's handler
    faulthandler.enable()  # a crash in MXNet's or Horovod's C++ code prints the Python stack
    faulthandler.register(signal.SIGUSR2)  # so that kill -USR2 shows where a rank hangs
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGSEGV])
    end_with_parent(run, attempt)
    heartbeat = Heartbeat(run, rank_from_environment(), attempt)
    config, plan = run.config(), run.plan()
    comm = open_communicator(config.comm, plan.sizes.ranks)
    redirect_output(run.path / "ranks" / f"{comm.rank}.log")
    try:
        outcome = Trainer(run, config, plan, comm, attempt, heartbeat).train()
        comm.close()
    except ConfigError as error:
        outcome = {"state": "refused", "exit": REFUSED, "error": str(error)}
    except Exception as error:
        outcome = failure(error, run)
    ended = RankStatus(rank=comm.rank, attempt=attempt, time_ms=int(time.time() * 1000), **outcome)
    run.save(ended)
    return ended.exit


def failure(error: Exception, run: RunDir) -> dict:
    """Return the outcome of a rank that failed. MXNet's messages start with a stack: the last line is the reason."""
    if isinstance(error, NotFinite):
        text = str(error)
    else:
        traceback.print_exc()
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        text = f"{type(error).__name__}: {lines[-1] if lines else 'no message'}"
    consequence = follows_from_lost_peer(text, str(run))
    return {"state": "failed", "exit": FAILURE, "error": text, "consequence": consequence}


def redirect_output(path) -> None:
    """Append the output of this process, that of MXNet's C++ code included, to `path`."""
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)


if __name__ == "__main__":
    exit_status = main(sys.argv[1], int(sys.argv[2]))
    sys.stdout.flush()
    # Not sys.exit: if a peer is gone, MXNet waits at exit for an exchange that never ends
    os._exit(exit_status)
