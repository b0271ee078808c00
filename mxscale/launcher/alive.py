"""The parent's heartbeat to its ranks: a child process touches `alive`, so that nothing in the parent delays it."""

import os
import subprocess
import sys
from contextlib import contextmanager

from mxscale.rundir.directory import RunDir

ALIVE_EVERY_S = 5.0
# It ends with its parent, even after kill -9: its standard input is then closed, and it has another parent. A stopped
# parent (SIGSTOP) has no heartbeat. A disk error is reported where the parent writes.
TOUCH = """
import os, select, sys
path, parent, every_s = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
readable = []
while not readable and os.getppid() == parent:
    try:
        with open(f"/proc/{parent}/stat", errors="replace") as stat:
            state = stat.read().rpartition(")")[2].split()[0]
        if state not in "tT":
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o666))
            os.utime(path)
    except OSError:
        pass
    readable = select.select([0], [], [], every_s)[0]
"""


@contextmanager
def kept_alive(run: RunDir, every_s: float = ALIVE_EVERY_S):
    """Touch `alive` from a child process while the block runs: neither a blocked terminal nor a thread that holds the
    interpreter's lock ends the ranks.
    """
    argv = [sys.executable, "-I", "-S", "-c", TOUCH, str(run.alive_file), str(os.getpid()), str(every_s)]
    # In a session of its own, which Ctrl-C does not reach; in /, so that no folder is kept in use
    streams = {"stdin": subprocess.PIPE, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(argv, **streams, start_new_session=True, cwd="/") as child:
        try:
            yield
        finally:
            child.kill()
