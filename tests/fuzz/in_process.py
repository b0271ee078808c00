"""The product's verbs in this process: a training job forks its preparation and its rank instead of starting Python."""

import os
import signal
import tempfile
import traceback
import warnings
from dataclasses import replace
from pathlib import Path

from PIL import Image

from mxscale.cli import main
from mxscale.cli.explain import refuse
from mxscale.launcher import run as job
from mxscale.launcher import setup
from mxscale.launcher.supervisor import Watched
from mxscale.util.errors import ConfigError

SMALL = ["comm=local", "launch.ranks=1", "launch.threads=1", "data.classes=[0,1]", "data.train_per_class=8",
         "batch.per_device=8", "log_every=1", "max_steps=2"]  # fmt: skip


def execute(case) -> int:
    """Give the case to the product; return the exit status."""
    warnings.simplefilter("ignore")
    try:
        return verb(case.argv) if case.run is None else case.run() or 0
    except ConfigError as error:
        return refuse(str(error))
    except Exception:
        traceback.print_exc()
        return 1


def verb(argv) -> int:
    """Run a verb as the command line does."""
    setup.prepare, job.supervise = _prepare, _supervise
    return main.main(list(argv))


def _prepare(context) -> None:
    from mxscale.train import preparation

    status = forked(preparation.main, str(context.run), context.attempt)
    if status:
        refused = context.run.read("refused.json") or {}
        raise ConfigError(refused.get("error", f"the preparation ended with status {status}"))


def _supervise(context, plan, mirror) -> Watched:
    """Train in place of a rank, without communication."""
    from mxscale.train import rank

    mirror.start()
    config = context.run.config()
    context.run.write_config(replace(config, comm=replace(config.comm, backend="local")))
    forked(rank.main, str(context.run), context.attempt)
    return Watched(None, None)


def forked(call, *arguments) -> int:
    """Return the exit status of `call(*arguments)` in a child process; of a signal as a shell does."""
    child = os.fork()
    if not child:
        status = 1
        try:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            status = call(*arguments)
        finally:
            os._exit(status)
    _, ended = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(ended) % 256


def shared_files() -> Path:
    """Make a folder with a finished run and its packed set, which cases copy; return it."""
    made = Path(tempfile.mkdtemp(prefix="fuzz-shared-"))
    places = [f"data.cache={made}/cache", "tracking=none"]
    Image.new("RGB", (32, 32)).save(made / "image.png")
    log = os.open(made / "log", os.O_CREAT | os.O_WRONLY)

    def train() -> int:
        os.dup2(log, 1)
        os.dup2(log, 2)
        failed = verb(["train", *SMALL, *places, f"runs={made}/runs"])
        failed = failed or verb(["train", *SMALL, *places, f"runs={made}/longer", "max_steps=4"])
        (run,) = (made / "runs" / "train").iterdir()
        return failed or verb(["export", str(run), f"output={made}/model.onnx"])

    if forked(train):
        raise RuntimeError(f"no run to damage: {(made / 'log').read_text()}")
    return made
