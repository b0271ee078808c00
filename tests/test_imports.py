"""The packages are layers: which package may import which, and which library is imported where."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "mxscale"

# From top to bottom. A package imports itself and what is below it, never what is above.
LAYERS = (
    "cli", "sweep", "rerun", "diagnose", "planner", "report", "doctor", "serve", "launcher", "train",
    "distributed", "tracking", "perfmodel", "records", "data", "models", "environment", "cost", "rundir", "config",
    "util",
)  # fmt: skip
FEATURES = {"sweep", "rerun", "diagnose", "planner", "report", "doctor"}  # do not import each other

# library -> the packages and modules that may import it, inside functions too
LIBRARIES = {
    "hydra": {"cli"},
    "omegaconf": {"cli"},
    "mlflow": {"tracking"},
    "horovod": {"distributed/communicators.py"},
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
def test_a_module_imports_its_own_layer_and_lower_ones(path):
    own = path.relative_to(PACKAGE).parts[0]
    if own in ("__init__.py", "__main__.py"):
        return
    forbidden = set(LAYERS[: LAYERS.index(own)]) | (FEATURES - {own} if own in FEATURES else set())
    assert packages_imported(path) & forbidden == set()


def test_every_package_is_a_layer():
    assert {path.parent.name for path in PACKAGE.glob("*/__init__.py")} <= set(LAYERS)


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_library_is_imported_in_its_place_alone(library):
    users = {name_of(path) for path in modules() if library in {name.split(".")[0] for name in imported(path)}}
    assert {user for user in users if not {user, user.split("/")[0]} & LIBRARIES[library]} == set()


def loaded_by(module: str, names) -> list:
    """Which of `names` a fresh interpreter has loaded after importing `module`."""
    code = f"import sys, {module}; print(*[name for name in {sorted(names)!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.split()


def test_the_parent_loads_neither_mxnet_nor_mlflow():
    drawing = {"matplotlib", "jinja2", "markupsafe", "pandas"}  # for reports alone; the ranks' images have none of it
    assert loaded_by("mxscale.cli.main", {"mxnet", "horovod", "mlflow", "hydra", *drawing}) == ["hydra"]


def test_the_parent_starts_without_what_plans_and_reports_calculate_with():
    assert loaded_by("mxscale.cli.main", {"numpy", "matplotlib", "pandas"}) == []


def test_a_rank_loads_no_config_tool_and_no_tracker():
    assert loaded_by("mxscale.train.rank", {"mxnet", "hydra", "omegaconf", "mlflow"}) == ["mxnet"]


@pytest.mark.parametrize("rank", ["train.rank", "distributed.exchange_probe", "train.input_probe"])
def test_a_rank_loads_nothing_of_its_parent(rank):
    names = [f"mxscale.{name_of(path)[:-3].replace('/', '.')}" for path in (PACKAGE / "launcher").glob("*.py")]
    assert loaded_by(f"mxscale.{rank}", set(names)) == []


def test_the_lowest_layers_load_no_framework():
    frameworks = {"mxnet", "horovod", "hydra", "omegaconf", "mlflow"}
    assert loaded_by("mxscale.config.validation, mxscale.cost.prices", frameworks) == []
