"""Check the architecture: `python tools/structure.py` prints one line per violation and fails if there is any.

The packages are layers; some libraries are imported in few places; only registries compare the names of their entries;
functions are short; test modules do not import each other.
"""

import ast
import sys
from pathlib import Path
from typing import Iterator, Set, Tuple

ROOT = Path(__file__).resolve().parents[1]

# From top to bottom. A package imports itself and what is below it, never what is above.
LAYERS = (
    "cli", "replay", "sweep", "rerun", "diagnose", "planner", "report", "doctor", "serve", "launcher", "train",
    "distributed", "tracking", "perfmodel", "records", "data", "models", "environment", "cost", "rundir", "config",
    "rendering", "util",
)  # fmt: skip
FEATURES = {"sweep", "rerun", "diagnose", "planner", "report", "doctor"}  # do not import each other

# library -> the packages and modules that may import it, inside functions too
LIBRARIES = {
    "hydra": {"cli"},
    "omegaconf": {"cli"},
    "mlflow": {"tracking", "serve/served_model.py"},  # the latter is run by MLflow
    "horovod": {"distributed/communicators.py", "launcher/horovodrun.py"},
    "mxnet": {"train", "distributed", "data", "models", "serve"},
    "onnx": {"serve"},
    "onnxruntime": {"serve"},
}

FUNCTION_LINES = 60
# Registered names that are values of other settings too
AMBIGUOUS = {"auto", "local", "device", "step", "symbol", "imagenet"}

Violation = Tuple[int, str]  # line, message


def main() -> int:
    """Print the violations of the checkout; return the exit status."""
    names = registered_names()
    found = []
    for path in sorted(file for folder in ("mxscale", "bench", "tools") for file in (ROOT / folder).rglob("*.py")):
        tree = ast.parse(path.read_text())
        found += [(path, *violation) for violation in long_functions(tree)]
        if path.is_relative_to(ROOT / "mxscale"):
            module = path.relative_to(ROOT / "mxscale").as_posix()
            found += [(path, *violation) for violation in forbidden_imports(module, tree)]
            found += [(path, *violation) for violation in compared_names(tree, names)]
    for path in sorted((ROOT / "tests").rglob("*.py")):
        found += [(path, *violation) for violation in imported_tests(ast.parse(path.read_text()))]
    for path, line, message in found:
        print(f"{path.relative_to(ROOT)}:{line}: {message}")
    return 1 if found else 0


def long_functions(tree: ast.AST) -> Iterator[Violation]:
    """Yield the functions of more than FUNCTION_LINES lines."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            lines = node.end_lineno - node.lineno + 1
            if lines > FUNCTION_LINES:
                yield node.lineno, f"{node.name} has {lines} lines, more than {FUNCTION_LINES}"


def imports(tree: ast.AST) -> Iterator[Tuple[int, str]]:
    """Yield (line, dotted name) of everything that a module imports, inside functions too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            dots = "." * node.level
            yield from ((node.lineno, f"{dots}{node.module or ''}.{alias.name}") for alias in node.names)


def forbidden_imports(module: str, tree: ast.AST) -> Iterator[Violation]:
    """Yield the imports of a higher layer, of another feature, of a library elsewhere, and relative ones.

    Args:
        module: Path relative to `mxscale/`.
    """
    package = module.split("/")[0]
    if "/" in module and package not in LAYERS:
        yield 1, f"the package {package} is not in LAYERS"
        return
    above = set(LAYERS[: LAYERS.index(package)]) if package in LAYERS else set()
    others = FEATURES - {package} if package in FEATURES else set()
    for line, name in imports(tree):
        top, *parts = name.split(".")
        if not top:
            yield line, "a relative import"
        elif top == "mxscale" and package in LAYERS and parts[0] in above | others:
            yield line, f"{package} imports {parts[0]}"
        elif top in LIBRARIES and not {module, package} & LIBRARIES[top]:
            yield line, f"{top} is imported outside {', '.join(sorted(LIBRARIES[top]))}"


def registered_names() -> Set[str]:
    """Return the names of all entries of the registries."""
    sys.path.insert(0, str(ROOT))
    from mxscale.config import backends, datasets, networks, optimizers, price_sources

    registries = (
        backends.BACKENDS, datasets.DATASETS, networks.NETWORKS, optimizers.OPTIMIZERS, price_sources.PRICE_SOURCES,
        optimizers.SCHEDULES,
    )  # fmt: skip
    return {name for registry in registries for name in registry} - AMBIGUOUS


def compared_names(tree: ast.AST, names: Set[str]) -> Iterator[Violation]:
    """Yield the comparisons with a registered name: code asks the entry for a capability instead."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            used = {each.value for each in ast.walk(node) if isinstance(each, ast.Constant)} & names
            if used:
                yield node.lineno, f"compares the registered name {', '.join(sorted(used))}: {ast.unparse(node)}"


def imported_tests(tree: ast.AST) -> Iterator[Violation]:
    """Yield the imports of test modules and of conftest: what tests share is in tests/support."""
    for line, name in imports(tree):
        parts = name.split(".")
        if parts[0] != "mxscale" and any(part.startswith("test_") or part == "conftest" for part in parts):
            yield line, f"imports {name}: what tests share is in tests/support"


if __name__ == "__main__":
    sys.exit(main())
