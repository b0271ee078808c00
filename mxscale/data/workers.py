"""Worker processes that validate and pack images. Only Pillow is imported here, not MXNet.

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
from pathlib import Path
from typing import Any, Callable, Iterable, Iterator, Optional, Union

from mxscale.data.images import BadImage
from mxscale.environment.container_limits import available_cores

Work = Callable[[Union[str, bytes]], Any]  # a function of mxscale.data.images, or a partial of one
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
        workers = [_Worker() for _ in range(self.workers)]
        for worker in workers:
            idle.put(worker)

        def submit(source):
            worker = idle.get()
            try:
                return worker(source, work)
            finally:
                idle.put(worker)

        threads = ThreadPoolExecutor(self.workers)
        try:
            waiting = deque()
            for source in sources:
                waiting.append(threads.submit(submit, source))
                if len(waiting) >= 8 * self.workers:  # bounds the memory
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
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
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
        )
        try:
            pickle.load(self._child.stdout)  # it has started
        except EOFError:
            raise RuntimeError("a packing process failed to start; see its error above") from None

    def __call__(self, source, work):
        try:
            pickle.dump((source, work), self._child.stdin)
            self._child.stdin.flush()
            return pickle.load(self._child.stdout)
        except (EOFError, OSError, pickle.UnpicklingError):
            self.close()
            status = self._child.returncode
            self._start()
            how = f"signal {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"
            return BadImage(f"its decoder crashed ({how})")

    def close(self):
        """Close the pipes and wait for the child, which exits at the end of its input."""
        for pipe in (self._child.stdin, self._child.stdout):
            try:
                pipe.close()
            except OSError:  # unsent bytes to a child that has exited
                pass
        self._child.wait()


def _attempt(source, work: Work):
    try:
        return work(source)
    except BadImage as bad:
        return bad


def serve() -> None:
    """Run a worker: read pickled (source, work) from stdin, write pickled results to stdout, until stdin ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
    jobs = sys.stdin.buffer
    results = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # output of a library must not mix with the results
    try:
        pickle.dump("ready", results)
        results.flush()
        while True:
            source, work = pickle.load(jobs)
            pickle.dump(_attempt(source, work), results)
            results.flush()
    except (EOFError, BrokenPipeError):  # the parent has finished or exited
        os._exit(0)


class Progress:
    """Progress of a long operation on stderr: a bar on a terminal, otherwise a line every 10 s."""

    def __init__(self, what: str, total: int, unit: str):
        self._what, self._total, self._unit = what, total, unit
        self._done, self._reported, self._bar = 0, time.monotonic(), None
        if sys.stderr.isatty():
            from tqdm import tqdm

            self._bar = tqdm(total=total, desc=what, unit=unit, unit_scale=unit == "B", leave=False)

    def add(self, count: int = 1) -> None:
        self._done += count
        if self._bar is not None:
            self._bar.update(count)
        elif time.monotonic() - self._reported >= 10:
            self._reported = time.monotonic()
            print(f"{self._what}: {self._done:,} of {self._total:,} {self._unit.strip()}", file=sys.stderr, flush=True)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self._bar is not None:
            self._bar.close()


if __name__ == "__main__":
    serve()
