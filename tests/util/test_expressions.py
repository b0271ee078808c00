"""Every regular expression of the product takes linear time, on texts that make it search again and again."""

import ast
import importlib
import random
import re
import time
import warnings
from pathlib import Path

import pytest

import mxscale
from mxscale.config.schema import RULES
from mxscale.config.verb_settings import REGISTERED
from mxscale.cost.price_table import CLOUDS
from mxscale.data.public import fetch
from mxscale.doctor.checks import IMPORT_FIXES
from mxscale.perfmodel.published.rows import DETAILS
from mxscale.tracking.store import CAUSES
from mxscale.util.redaction import USER, redact

with warnings.catch_warnings():  # Python 3.11 calls them re._compiler and re._parser, 3.10 does not have these names
    warnings.simplefilter("ignore", DeprecationWarning)
    import sre_compile
    import sre_parse

ROOT = Path(mxscale.__file__).parent
FUNCTIONS = ("compile", "match", "fullmatch", "search", "sub", "split", "findall", "finditer")
SHORT, LONG = (1 << 12, 1 << 14), (1 << 17, 1 << 20)
SLOWEST = 3  # texts of each expression that are tried in the long lengths
# CPU time: linear expressions take some hundredth of it, a quadratic one more from 16 kB on
LIMIT_S, PER_CHARACTER_S = 0.2, 5e-6
# (module, expression) -> what a variable holds
HELD = {
    ("tracking/store.py", "pattern"): [pattern for pattern, _ in CAUSES],
    ("doctor/checks.py", "pattern"): [pattern for pattern, _ in IMPORT_FIXES],
    ("perfmodel/published/rows.py", "DETAILS[name]"): [*DETAILS.values()],
    ("perfmodel/hardware.py", "row['pattern']"): [],  # the names that are searched are cut
    ("config/setting.py", "self.pattern"): [REGISTERED, *(rule.pattern for rule in RULES.values() if rule.pattern)],
    ("data/public/formats.py", "'\\\\d{3}\\\\.' if data.clutter else '(?!257)\\\\d{3}\\\\.'"): [r"(?!257)\d{3}\."],
    ("data/public/fetch.py", "pattern"): [pattern for pattern, _ in fetch.CAUSES],
    ("cost/price_table.py", "CLOUDS[cloud].listed"): [source.listed for source in CLOUDS.values()],
}
PUMPS = ["a", "-", "a-", "0", " ", "\n", "=", "/", "'", "\t\n"]


def calls():
    """Yield (module, function of `re` or of a compiled expression, its node) of all calls in the product."""
    for path in sorted(ROOT.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in FUNCTIONS:
                yield path.relative_to(ROOT).as_posix(), node.func, node


def expressions():
    """Return [(compiled expression, the names of its functions that are called)] of all calls of `re`."""
    found, used = [], {}
    for _, function, _ in calls():
        used.setdefault(ast.unparse(function.value).rpartition(".")[2], set()).add(function.attr)
    for module, function, node in calls():
        if ast.unparse(function.value) != "re":
            continue
        text = ast.unparse(node.args[0])
        given = [*node.args[1:], *(keyword.value for keyword in node.keywords)]
        flags = sum(eval(each, {"re": re}) for each in map(ast.unparse, given) if each.startswith("re."))
        methods = {function.attr} - {"compile"} or used.get(names_of(module).get(text), {"fullmatch", "finditer"})
        patterns = HELD[module, text] if (module, text) in HELD else [evaluated(module, text)]
        found += [(re.compile(pattern, flags), methods) for pattern in patterns]
    return found


def names_of(module: str):
    """Return {expression: the name to which its compiled form is assigned} of a module."""
    assigned = [node for node in ast.parse((ROOT / module).read_text()).body if isinstance(node, ast.Assign)]
    compiled = [each for each in assigned if isinstance(each.value, ast.Call) and each.value.args]
    return {ast.unparse(each.value.args[0]): ast.unparse(each.targets[0]) for each in compiled}


def evaluated(path: str, text: str):
    """Return the value of an expression of constants of its module."""
    module = importlib.import_module(f"mxscale.{path[:-3].replace('/', '.')}")
    try:
        return eval(text, vars(module))
    except (NameError, KeyError):
        pytest.fail(f"{path}: re is called with {text}: list its values in HELD")


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


def attacks(pattern):
    """Yield (head, pump): a text is the head, and the pump many times."""
    dice = random.Random(1)
    parsed = sre_parse.parse(pattern.pattern, pattern.flags & ~re.UNICODE)
    samples = {sample(parsed, dice) for _ in range(12)}
    begun = {text[: dice.randint(1, len(text))] for text in samples if text}
    pumps = {*PUMPS, *samples, *begun, *(text[-1] for text in begun)} - {""}
    yield from ((head, pump) for pump in sorted(pumps) for head in ("", min(begun, default="")))


def search(pattern, methods, text: str) -> None:
    """Call these methods of a compiled expression with a text."""
    if pattern == USER:  # it searches lines that end with @; not `is`, since the cache of `re` forgets objects
        redact(text)
        return
    text = text.encode("latin-1", "replace") if isinstance(pattern.pattern, bytes) else text
    for method in methods:
        if method in ("match", "fullmatch", "search"):
            getattr(pattern, method)(text)
        else:  # the others find all
            for _ in pattern.finditer(text):
                pass


def check(searched, parts, length: int) -> float:
    """Return the seconds of CPU time of the searches in a text of that length, which must be few."""
    head, pump, end = parts
    text, began = head + pump * (length // len(pump)) + end, time.process_time()
    search(*searched, text)
    taken = time.process_time() - began
    assert taken < LIMIT_S + length * PER_CHARACTER_S, (searched, parts, length, taken)
    return taken


@pytest.mark.slow
def test_every_expression_is_linear():
    for searched in expressions():
        parts = [(*attack, end) for attack in attacks(searched[0]) for end in ("", "\0", "\n@")]
        tried = sorted((max(check(searched, each, length) for length in SHORT), each) for each in parts)
        for _, each in tried[-SLOWEST:]:
            for length in LONG:
                check(searched, each, length)


@pytest.mark.parametrize("pump", ["a-", "//a:", "uri=", "uri=a:", "//a:@", "password='", "uri: ", "http://a:8", "/"])
@pytest.mark.parametrize("end", ["", "@", "\n@", " @ "])
def test_redaction_is_linear(pump, end):
    began = time.process_time()
    redact(pump * (100_000 // len(pump)) + end)
    assert time.process_time() - began < LIMIT_S + 100_000 * PER_CHARACTER_S
