"""Worker processes that validate and pack images. MXNet is not imported here.

Each worker is a child process, `python -m mxscale.data.workers`, which a thread feeds through pipes. The
multiprocessing module would run the parent's main module, MXNet included, in every child. Its children outlive a killed
parent, and it cannot name the image on which a decoder crashed.
"""

import os
import pickle
import queue
import signal
import subprocess
import sys
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, suppress
from itertools import islice
from pathlib import Path
from typing import Any, Callable, Iterable, Iterator, List, Optional, Union

from mxscale.data.images import BadImage
from mxscale.environment.container_limits import available_cores

Work = Callable[[Union[str, bytes]], Any]  # such as mxscale.data.images.examine, or a partial of one
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}  # in each worker, which has a core of its own
CHUNK = 8  # images that a worker receives at a time
REPORT_S = 10  # between two lines of progress
PER_WORKER = 64  # images; starting another process does not pay off for fewer


class Pool:
    """Processes images in order in `workers` processes; None: by the cores and the number of images."""

    def __init__(self, workers: Optional[int], images: int):
        if workers is None:
            workers = min(available_cores(), images // PER_WORKER)
        self.workers = max(1, workers)

    def map(self, sources: Iterable, work: Work) -> Iterator:
        """Yield for each source `work(source)`, or the BadImage that it raised."""
        if self.workers == 1:
            for source in sources:
                yield _attempt(source, work)
            return
        idle = queue.SimpleQueue()
        workers = [_Worker() for _ in range(self.workers)]  # all start at the same time
        for worker in workers:
            worker.wait()
            idle.put(worker)

        def submit(chunk):
            worker = idle.get()
            try:
                return worker(chunk, work)
            finally:
                idle.put(worker)

        threads = ThreadPoolExecutor(self.workers)
        try:
            waiting, sources = deque(), iter(sources)
            while chunk := list(islice(sources, CHUNK)):
                waiting.append(threads.submit(submit, chunk))
                if len(waiting) >= 3 * self.workers:  # bounds the memory
                    yield from waiting.popleft().result()
            while waiting:
                yield from waiting.popleft().result()
        finally:
            threads.shutdown(cancel_futures=True)
            for worker in workers:
                worker.close()


class _Worker:
    """One child process; it is restarted if an image crashes it."""

    def __init__(self):
        self._start()

    def _start(self):
        paths = [str(Path(__file__).resolve().parents[2]), os.environ.get("PYTHONPATH", "")]
        self._child = subprocess.Popen(
            [sys.executable, "-m", "mxscale.data.workers"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **ONE_THREAD, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
        )

    def wait(self):
        """Wait until the child accepts images."""
        try:
            pickle.load(self._child.stdout)
        except EOFError:
            raise RuntimeError("a packing process failed to start; see its error above") from None

    def __call__(self, sources: List, work: Work) -> List:
        """Return the results of `sources`. One that crashes the child is a BadImage."""
        try:
            pickle.dump((sources, work), self._child.stdin)
            self._child.stdin.flush()
            return pickle.load(self._child.stdout)
        except (EOFError, OSError, pickle.UnpicklingError):
            self.close()
            status = self._child.returncode
            self._start()
            self.wait()
        if len(sources) > 1:  # one at a time, to find the one
            return [result for source in sources for result in self([source], work)]
        how = f"signal {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"
        return [BadImage(f"its decoder crashed ({how})")]

    def close(self):
        """Close the pipes and wait for the child, which exits at the end of its input."""
        for pipe in (self._child.stdin, self._child.stdout):
            with suppress(OSError):  # unsent bytes to a child that has exited
                pipe.close()
        self._child.wait()


def _attempt(source, work: Work):
    try:
        return work(source)
    except BadImage as bad:
        return bad


def serve() -> None:
    """Run a worker: read pickled (sources, work) from stdin and write pickled lists of results to stdout."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
    jobs = sys.stdin.buffer
    results = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # output of a library must not mix with the results
    try:
        pickle.dump("ready", results)
        results.flush()
        while True:
            sources, work = pickle.load(jobs)
            pickle.dump([_attempt(source, work) for source in sources], results)
            results.flush()
    except (EOFError, BrokenPipeError):  # the parent has finished or exited
        os._exit(0)


class Progress(AbstractContextManager):
    """Progress, rate and time left of a long operation on stderr: a bar on a terminal, otherwise lines."""

    def __init__(self, what: str, total: int, unit: str):
        self._what, self._total, self._unit = what, total, unit
        self._done, self._bar = 0, None
        self._reported = (time.monotonic(), 0)  # time and `_done` of the last line
        if sys.stderr.isatty():
            from tqdm import tqdm

            self._bar = tqdm(total=total, desc=what, unit=unit, unit_scale=unit == "B", leave=False)

    def add(self, count: int = 1) -> None:
        self._done += count
        if self._bar is not None:
            self._bar.update(count)
        elif time.monotonic() - self._reported[0] >= REPORT_S:
            print(self._line(time.monotonic()), file=sys.stderr, flush=True)

    def _line(self, now: float) -> str:
        then, before = self._reported
        self._reported = (now, self._done)
        unit, rate = self._unit.strip(), (self._done - before) / (now - then)
        left = f"{(self._total - self._done) / rate:,.0f} s left" if rate else "stalled"
        return f"{self._what}: {self._done:,} of {self._total:,} {unit}, {rate:,.0f} {unit}/s, {left}"

    def __exit__(self, *_):
        if self._bar is not None:
            self._bar.close()


if __name__ == "__main__":
    serve()
