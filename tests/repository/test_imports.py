"""Which libraries and packages are loaded by importing a module."""

import subprocess
import sys

import pytest
from repository import ROOT


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
        pytest.param(
            "mxscale.train.rank", {"mxnet", "hydra", "omegaconf", "mlflow"}, ["mxnet"], marks=pytest.mark.slow
        ),
        ("mxscale.config.validation, mxscale.cost.prices", FRAMEWORKS, []),
        ("mxscale.tracking.tracker", {"mlflow"}, []),
        ("mxscale.launcher.run", {"docker"}, []),
        ("mxscale.data.workers", {"mxnet", "cv2"}, []),
    ],
)
def test_a_module_loads_only_the_libraries_it_needs(module, names, loaded):
    assert loaded_by(module, names) == loaded


@pytest.mark.slow
@pytest.mark.parametrize("rank", ["train.rank", "distributed.allreduce_probe"])
def test_a_rank_loads_nothing_of_its_parent(rank):
    names = [f"mxscale.launcher.{path.stem}" for path in (ROOT / "mxscale" / "launcher").glob("*.py")]
    assert loaded_by(f"mxscale.{rank}", set(names)) == []
