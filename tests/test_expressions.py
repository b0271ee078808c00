"""Every regular expression of the product takes linear time, on texts that make it search again and again."""

import ast
import importlib
import random
import re
import sre_compile
import sre_parse
import time
from pathlib import Path

import pytest

import mxscale
from mxscale.config.operation_settings import REGISTERED
from mxscale.doctor.doctor import IMPORT_FIXES
from mxscale.tracking.store import CAUSES
from mxscale.util import csv_tables
from mxscale.util.redaction import redact

ROOT = Path(mxscale.__file__).parent
FUNCTIONS = ("compile", "match", "fullmatch", "search", "sub", "split", "findall", "finditer")
SHORT, LONG = (1 << 12, 1 << 14), (1 << 17, 1 << 20)
SLOWEST = 3  # texts of each expression that are tried in the long lengths
# CPU time: linear expressions take some hundredth of it, a quadratic one more from 16 kB on
LIMIT_S, PER_CHARACTER_S = 0.2, 5e-6
# (module, expression) -> what a variable holds
HELD = {
    ("tracking/store.py", "pattern"): [pattern for pattern, _ in CAUSES],
    ("doctor/doctor.py", "pattern"): [pattern for pattern, _ in IMPORT_FIXES],
    ("perfmodel/hardware.py", "row['pattern']"): [
        row["pattern"] for table in ("hardware", "models") for row in csv_tables.read(table)
    ],
    ("config/setting.py", "self.pattern"): [REGISTERED],
    ("data/public/download.py", r"f'bytes {out.tell()}-\\d+/'"): [r"bytes 100-\d+/"],
}
PUMPS = ["a", "-", "a-", "0", " ", "\n", "=", "/", "'", "\t\n"]


def expressions():
    """Return {(module, expression): (patterns, flags)} of all calls of `re` in the product."""
    found = {}
    for path in sorted(ROOT.rglob("*.py")):
        name = path.relative_to(ROOT).as_posix()
        for node in ast.walk(ast.parse(path.read_text())):
            called = node.func if isinstance(node, ast.Call) else None
            if getattr(getattr(called, "value", None), "id", None) == "re" and called.attr in FUNCTIONS:
                text = ast.unparse(node.args[0])
                given = [*node.args[1:], *(keyword.value for keyword in node.keywords)]
                flags = sum(eval(each, {"re": re}) for each in map(ast.unparse, given) if each.startswith("re."))
                found[name, text] = (HELD.get((name, text)) or [evaluated(name, text)], flags)
    return found


def evaluated(name: str, text: str):
    """Return the value of an expression of constants of its module."""
    module = importlib.import_module(f"mxscale.{name[:-3].replace('/', '.')}")
    try:
        return eval(text, vars(module))
    except (NameError, KeyError):
        pytest.fail(f"{name}: re is called with {text}: list its values in HELD")


def sample(items, dice) -> str:
    """Return a text that a parsed expression matches, apart from what it asserts about its surroundings."""
    parts = []
    for kind, value in items:
        kind = str(kind)
        if kind == "LITERAL":
            parts.append(chr(value))
        elif kind == "IN":
            allowed = [chr(code) for code in range(1, 128) if in_set(value, code)]
            parts.append(dice.choice(allowed or ["\xe9"]))
        elif kind in ("ANY", "NOT_LITERAL"):
            parts.append("x")
        elif kind in ("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT"):
            low, high, repeated = value
            parts += [sample(repeated, dice) for _ in range(dice.randint(low, min(high, low + 2)))]
        elif kind in ("SUBPATTERN", "ATOMIC_GROUP"):
            parts.append(sample(value[-1] if kind == "SUBPATTERN" else value, dice))
        elif kind == "BRANCH":
            parts.append(sample(dice.choice(value[1]), dice))
    return "".join(parts)


def in_set(items, code: int) -> bool:
    alone = sre_parse.SubPattern(sre_parse.State(), [(sre_parse.IN, items)])
    return sre_compile.compile(alone).match(chr(code)) is not None


def attacks(pattern, flags: int):
    """Yield (head, pump): a text is the head and the pump many times, with one of ENDS after it."""
    dice = random.Random(1)
    parsed = sre_parse.parse(pattern, flags)
    samples = {sample(parsed, dice) for _ in range(12)}
    begun = {text[: dice.randint(1, len(text))] for text in samples if text}
    pumps = {*PUMPS, *samples, *begun, *(text[-1] for text in begun)} - {""}
    yield from ((head, pump) for pump in sorted(pumps) for head in ("", min(begun, default="")))


def work(pattern, text: str) -> float:
    """Return the seconds of CPU time of all ways to search a text."""
    text = text.encode("latin-1", "replace") if isinstance(pattern.pattern, bytes) else text
    began = time.process_time()
    pattern.fullmatch(text)
    for _ in pattern.finditer(text):
        pass
    return time.process_time() - began


def check(pattern, head: str, pump: str, end: str, length: int) -> float:
    taken = work(pattern, head + pump * (length // len(pump)) + end)
    assert taken < LIMIT_S + length * PER_CHARACTER_S, (pattern.pattern, head, pump, end, length, taken)
    return taken


@pytest.mark.slow
def test_every_expression_is_linear():
    for patterns, flags in expressions().values():
        for text in patterns:
            pattern = text if isinstance(text, re.Pattern) else re.compile(text, flags)
            tried = [
                (max(check(pattern, head, pump, end, length) for length in SHORT), head, pump, end)
                for head, pump in attacks(pattern.pattern, pattern.flags & ~re.UNICODE)
                for end in ("", "\0", "\n@")
            ]
            for _, *attack in sorted(tried)[-SLOWEST:]:
                for length in LONG:
                    check(pattern, *attack, length)


@pytest.mark.parametrize("pump", ["a-", "//a:", "uri=", "uri=a:", "//a:@", "password='", "uri: ", "http://a:8", "/"])
@pytest.mark.parametrize("end", ["", "@", "\n@", " @ "])
def test_redaction_is_linear(pump, end):
    began = time.process_time()
    redact(pump * (100_000 // len(pump)) + end)
    assert time.process_time() - began < LIMIT_S + 100_000 * PER_CHARACTER_S
