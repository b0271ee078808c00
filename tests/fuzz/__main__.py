"""Run generated cases: `python -m tests.fuzz --count 300 --seed 1`, or one: `--kind image --case 123`."""

import argparse
import json
import multiprocessing
import os
import shutil
import sys
import time
from concurrent.futures import ProcessPoolExecutor, as_completed

from .oracle import FAULTY, KINDS, SURFACE, judge

SLOW = {"clock": 4, "kill": 4, "answer": 2}  # kinds of which one in so many is run
SPACE = 1_000_000  # numbers of a seed
SHARED = ("run", "settings", "address", *SURFACE)  # kinds that need a run


def preload(kinds) -> None:
    """Import once what cases use; their processes are forks of this one."""
    from mxscale.data import pack  # noqa: F401

    from . import in_process  # noqa: F401

    if {"weights", *SHARED} & set(kinds):
        from mxscale.serve import export, predict  # noqa: F401
        from mxscale.train import prepare, rank  # noqa: F401
    if "address" in kinds:
        import mlflow.store.tracking.sqlalchemy_store  # noqa: F401

        from mxscale.report import report as reports  # noqa: F401


def arguments():
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--kind", nargs="*", choices=[*KINDS, FAULTY], default=list(KINDS))
    parser.add_argument("--case", type=int, help="run this one case of the kind")
    parser.add_argument("--command", action="store_true", help="through the command line")
    parser.add_argument("--keep", action="store_true", help="keep the folder of the case")
    parser.add_argument("--count", type=int, default=20, help="cases of each kind")
    parser.add_argument("--commands", type=int, help="of them also through the command line; default: a twentieth")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--limit", type=float, default=40.0, help="seconds for a case in process")  # 30 for a store
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    return parser.parse_args()


def main() -> int:
    given, began = arguments(), time.monotonic()
    preload(given.kind)
    from .in_process import shared_files

    shared = shared_files() if set(SHARED) & set(given.kind) else None
    try:
        if given.case is not None:
            wanted = [(kind, given.case, given.command) for kind in given.kind]
        else:
            first, commands = given.seed * SPACE, given.count // 20 if given.commands is None else given.commands
            wanted = [
                (kind, first + n, False)
                for n in range(given.count)
                for kind in given.kind
                if kind not in SLOW or n % SLOW[kind] == 0
            ]
            wanted += [(kind, first + n, True) for n in range(commands) for kind in given.kind]
        verdicts = run(wanted, given, shared)
    finally:
        if shared:
            shutil.rmtree(shared)
    for command in (False, True):
        table([each for each in verdicts if each.command == command], "command line" if command else "in process")
    violations = [each for each in verdicts if each.violations]
    commands, seconds = sum(each.command for each in verdicts), round(time.monotonic() - began)
    counts = {"cases": len(verdicts) - commands, "commands": commands, "violations": len(violations)}
    counts.update(seed=given.seed, seconds=seconds)
    print(json.dumps(counts))
    return int(bool(violations))


def run(wanted, given, shared) -> list:
    """Judge the cases in worker processes; print each violation when it is found."""
    verdicts = []
    context = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(min(given.jobs, len(wanted)), mp_context=context) as pool:
        tasks = [pool.submit(judge, *one, given, str(shared) if one[0] in SHARED else "") for one in wanted]
        for task in as_completed(tasks):
            verdict = task.result()
            verdicts.append(verdict)
            if verdict.violations or given.case is not None:
                report(verdict)
    return verdicts


def report(verdict) -> None:
    repeat = f"python -m tests.fuzz --kind {verdict.kind} --case {verdict.number}{' --command' * verdict.command}"
    print(f"{verdict.outcome} in {verdict.seconds:.1f} s: {repeat}\n  {ascii(verdict.what)[1:-1]}", flush=True)
    for violation in verdict.violations:
        print(f"  ! {violation.encode('ascii', 'backslashreplace').decode()}", flush=True)


def table(verdicts, title: str) -> None:
    if not verdicts:
        return
    print(f"\n{title:<14}{'cases':>7}{'passed':>8}{'refused':>9}{'violations':>12}{'median s':>10}{'longest':>9}")
    for kind in (*KINDS, FAULTY):
        own = [each for each in verdicts if each.kind == kind]
        if own:
            times, outcomes = sorted(each.seconds for each in own), [each.outcome for each in own]
            wrong = sum(bool(each.violations) for each in own)
            print(f"{kind:<14}{len(own):>7}{outcomes.count('passed'):>8}{outcomes.count('refused'):>9}{wrong:>12}"
                  f"{times[len(own) // 2]:>10.2f}{times[-1]:>9.1f}")  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
