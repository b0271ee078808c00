"""The preparation's process: `python -m mxscale.train.preparation RUN_DIR ATTEMPT`.

A refused run, also one whose MXNet does not load on this machine, is one line in refused.json and exit status 2.
"""

import sys

from mxscale.distributed.heartbeat import end_with_parent
from mxscale.rundir.directory import RunDir
from mxscale.rundir.status import DONE, REFUSED
from mxscale.util.errors import ConfigError
from mxscale.util.redaction import redact


def main(run_path: str, attempt: int) -> int:
    run = RunDir(run_path)
    end_with_parent(run, attempt)
    try:
        try:
            from mxscale.train.prepare import prepare
        except OSError as error:  # a library that MXNet links to is missing, such as the driver's
            raise ConfigError(f"MXNet can't be loaded: {error}; see `mxscale doctor`") from error
        prepare(run, run.config())
    except ConfigError as error:
        run.write("refused.json", {"error": redact(str(error))})
        return REFUSED
    return DONE


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2])))
