"""The folders are the layers: who may import what."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "mxscale"
CONFIG_TOOLS = {"hydra", "omegaconf"}
PURE = {"mxscale.checks", "mxscale.config", "mxscale.durable", "mxscale.identity", "mxscale.sizes"}


def imported(path: Path, parts=2) -> set:
    """Top-level names of everything that a file imports, inside functions too; mxscale's own as `mxscale.x`."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return {".".join(name.split(".")[: parts if name.startswith("mxscale.") else 1]) for name in names}


def importers(name: str) -> set:
    return {str(path.relative_to(PACKAGE)) for path in PACKAGE.rglob("*.py") if name in imported(path)}


def of_layer(layer: str) -> set:
    file = PACKAGE / f"{layer}.py"
    files = [file] if file.exists() else list((PACKAGE / layer).rglob("*.py"))
    assert files
    return set().union(*map(imported, files))


@pytest.mark.parametrize(
    "layer, forbidden",
    [
        ("config", {"mxnet", "hydra", "omegaconf", "mlflow", "horovod", "numpy"}),
        ("sizes", {"mxnet", "hydra", "omegaconf", "mlflow", "horovod", "numpy"}),
        ("checks", {"mxnet", "hydra", "omegaconf", "mlflow", "horovod", "numpy"}),
        ("durable", {"mxnet", "hydra", "omegaconf", "mlflow", "horovod", "numpy"}),
        ("identity", {"mxnet", "hydra", "omegaconf", "mlflow", "horovod", "numpy"}),
        ("scale", {"mxnet", "hydra", "omegaconf", "mlflow", "horovod"}),
        ("data", {*CONFIG_TOOLS, "mlflow", "horovod"}),
        ("nets", {*CONFIG_TOOLS, "mlflow", "horovod"}),
        ("train", {*CONFIG_TOOLS, "mlflow"}),
        ("run", {"mxnet", "horovod", *CONFIG_TOOLS}),
        ("report", {"mxnet", "horovod", "mlflow", *CONFIG_TOOLS}),
        ("settings", {"mxnet", "horovod", "mlflow", *CONFIG_TOOLS}),
        ("tools", {"mxnet", "horovod", "mlflow", *CONFIG_TOOLS}),
        ("sweeps", {"mxnet", "horovod", "mlflow"}),
        ("cli", {"mxnet", "horovod", "mlflow"}),
    ],
)
def test_a_layer_does_not_know(layer, forbidden):
    assert of_layer(layer) & forbidden == set()


@pytest.mark.parametrize(
    "layer, known",
    [
        ("config", set()),
        ("sizes", {"mxscale.config"}),
        ("checks", {"mxscale.config", "mxscale.sizes"}),
        ("durable", set()),
        ("identity", {"mxscale.config"}),
        ("scale", {*PURE, "mxscale.scale"}),
        ("data", {"mxscale.config", "mxscale.durable", "mxscale.identity", "mxscale.data"}),
        ("nets", {"mxscale.config", "mxscale.durable", "mxscale.nets"}),
        ("train", {*PURE - {"mxscale.checks"}, "mxscale.data", "mxscale.nets", "mxscale.train", "mxscale.run"}),
        ("run", {*PURE, "mxscale.scale", "mxscale.run"}),
        ("report", {"mxscale.config", "mxscale.scale", "mxscale.run", "mxscale.report"}),
    ],
)
def test_a_layer_knows_of_the_others_at_most(layer, known):
    assert {name for name in of_layer(layer) if name.startswith("mxscale")} <= known


def test_train_knows_of_run_the_run_directory_and_what_three_modules_ask():
    known = {}
    for path in (PACKAGE / "train").glob("*.py"):
        of_run = {name for name in imported(path, parts=3) if name.startswith("mxscale.run.")}
        known[path.name] = of_run - {"mxscale.run.rundir"}
    assert {name: modules for name, modules in known.items() if modules} == {
        "build.py": {"mxscale.run.environment"},  # which image this process runs in
        "prepare.py": {"mxscale.run.processes"},  # how many cores there are
        "server.py": {"mxscale.run.hosts"},  # the address that others find this machine by
    }


def test_horovod_is_imported_in_comm_alone():
    assert importers("horovod") == {"train/comm.py"}


def test_mlflow_is_imported_by_who_sends_and_by_who_asks_alone():
    assert importers("mlflow") == {"run/sender.py", "run/store.py"}


def test_hydra_is_imported_in_cli_its_errors_its_sweeps_and_the_entry_scripts_alone():
    assert importers("hydra") | importers("omegaconf") == {"cli.py", "explain.py", "sweeps.py"}  # Hydra's callback


def test_nothing_inside_imports_cli():
    assert importers("mxscale.cli") == set()


def loaded_by(module: str, names) -> list:
    """Which of `names` a fresh interpreter has loaded after importing `module`."""
    code = f"import sys, {module}; print(*[name for name in {sorted(names)!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.split()


def test_the_parent_loads_neither_mxnet_nor_mlflow():
    drawing = {"matplotlib", "jinja2", "markupsafe", "pandas"}  # for reports alone; ranks' images have none of it
    assert loaded_by("mxscale.cli", {"mxnet", "horovod", "mlflow", "hydra", *drawing}) == ["hydra"]


def test_the_parent_starts_without_what_plans_and_reports_calculate_with():
    assert loaded_by("mxscale.cli", {"numpy", "matplotlib", "pandas"}) == []


def test_a_rank_loads_no_config_tool_and_no_tracker():
    assert loaded_by("mxscale.train.engine", {"mxnet", "hydra", "omegaconf", "mlflow"}) == ["mxnet"]


@pytest.mark.parametrize("rank", ["engine", "probe", "reading"])
def test_a_rank_loads_nothing_that_starts_or_watches_others(rank):
    parents = {f"mxscale.run.{name}" for name in ("launch", "processes", "watch", "progress", "probe")}
    assert loaded_by(f"mxscale.train.{rank}", parents) == []


def test_the_pure_layers_load_no_framework():
    frameworks = {"mxnet", "horovod", "hydra", "omegaconf", "mlflow"}
    assert loaded_by("mxscale.config, mxscale.scale.prices", frameworks) == []
