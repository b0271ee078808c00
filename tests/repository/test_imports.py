"""The packages are layers: which package may import which, and which library is imported where."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest
from repository import ROOT

PACKAGE = ROOT / "mxscale"

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
}


def modules() -> list:
    return sorted(PACKAGE.rglob("*.py"))


def name_of(path: Path) -> str:
    return str(path.relative_to(PACKAGE))


def imported(path: Path) -> set:
    """Dotted names of everything that a file imports, inside functions too."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def packages_imported(path: Path) -> set:
    return {name.split(".")[1] for name in imported(path) if name.startswith("mxscale.")}


@pytest.mark.parametrize("path", modules(), ids=name_of)
def test_module_imports_only_its_and_lower_layers(path):
    own = path.relative_to(PACKAGE).parts[0]
    if own in ("__init__.py", "__main__.py"):
        return
    forbidden = set(LAYERS[: LAYERS.index(own)]) | (FEATURES - {own} if own in FEATURES else set())
    assert packages_imported(path) & forbidden == set()


def test_every_package_is_a_layer():
    assert {path.parent.name for path in PACKAGE.glob("*/__init__.py")} <= set(LAYERS)


@pytest.mark.parametrize("library", LIBRARIES)
def test_library_is_imported_only_where_allowed(library):
    users = {name_of(path) for path in modules() if library in {name.split(".")[0] for name in imported(path)}}
    assert {user for user in users if not {user, user.split("/")[0]} & LIBRARIES[library]} == set()


def loaded_by(module: str, names) -> list:
    """Return which of `names` are loaded by importing `module` in a new interpreter."""
    code = f"import sys, {module}; print(*[name for name in {sorted(names)!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.split()


FRAMEWORKS = {"mxnet", "horovod", "hydra", "omegaconf", "mlflow"}
DRAWING = {"numpy", "matplotlib", "jinja2", "markupsafe", "pandas"}  # for plans and reports; images of ranks lack them


@pytest.mark.parametrize(
    "module, names, loaded",
    [
        ("mxscale.cli.main", {"mxnet", "horovod", "mlflow", "hydra", *DRAWING}, ["hydra"]),
        ("mxscale.train.rank", {"mxnet", "hydra", "omegaconf", "mlflow"}, ["mxnet"]),
        ("mxscale.config.validation, mxscale.cost.prices", FRAMEWORKS, []),
        ("mxscale.tracking.tracker", {"mlflow"}, []),
        ("mxscale.launcher.run", {"docker"}, []),
        ("mxscale.data.workers", {"mxnet", "cv2"}, []),
    ],
)
def test_a_module_loads_only_the_libraries_it_needs(module, names, loaded):
    assert loaded_by(module, names) == loaded


@pytest.mark.parametrize("rank", ["train.rank", "train.input_probe"])
def test_a_rank_loads_nothing_of_its_parent(rank):
    names = [f"mxscale.{name_of(path)[:-3].replace('/', '.')}" for path in (PACKAGE / "launcher").glob("*.py")]
    assert loaded_by(f"mxscale.{rank}", set(names)) == []
