"""tools/structure.py, the lint of the architecture: each kind of violation is found."""

import ast
from textwrap import dedent

import pytest

from tools import structure


@pytest.mark.parametrize(
    "module, text, message",
    [
        ("data/a.py", "def f():\n    from mxscale.launcher import run", "data imports launcher"),
        ("sweep/a.py", "import mxscale.rerun.rerun", "sweep imports rerun"),
        ("data/a.py", "from . import pack", "a relative import"),
        ("launcher/a.py", "import mxnet as mx", "mxnet is imported outside data, distributed, models, serve, train"),
        ("drawer/a.py", "", "the package drawer is not in LAYERS"),
        ("tracking/a.py", "import mlflow\nfrom mxscale.rundir import plan", None),
        ("__main__.py", "from mxscale.cli import main", None),
    ],
)
def test_imports_against_the_layers_are_found(module, text, message):
    found = [text for _, text in structure.forbidden_imports(module, ast.parse(text))]
    assert found == ([message] if message else [])


def test_comparisons_of_registered_names_are_found():
    text = "if backend == 'horovod' or kind == 'step':\n    pass"
    ((line, message),) = structure.compared_names(ast.parse(text), structure.registered_names())
    assert (line, message) == (1, "compares the registered name horovod: backend == 'horovod'")


def test_long_functions_and_imports_of_tests_are_found():
    longest = "def f():\n" + "    pass\n" * (structure.FUNCTION_LINES - 1)
    assert not [*structure.long_functions(ast.parse(longest))]
    assert [*structure.long_functions(ast.parse(longest + "    pass"))] == [(1, "f has 61 lines, more than 60")]
    tests = dedent("""
        import test_a
        from tests.data.test_b import c
        from conftest import ROOT
        from mxscale.data import test_io
    """)
    assert [line for line, _ in structure.imported_tests(ast.parse(tests))] == [2, 3, 4]
