"""Limits on the size of modules, functions and packages; ruff checks complexity, parameters and statements."""

import ast

import pytest
from repository import ROOT, name_of

MODULES = sorted(path for folder in ("mxscale", "bench") for path in (ROOT / folder).rglob("*.py"))
PACKAGES = sorted({path.parent for path in MODULES})


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_a_module_has_at_most_320_lines(path):
    assert len(path.read_text().splitlines()) <= 320


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_a_function_has_at_most_60_lines(path):
    functions = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef)]
    assert [node.name for node in functions if node.end_lineno - node.lineno >= 60] == []


@pytest.mark.parametrize("package", [folder for folder in PACKAGES if folder.name != "bench"], ids=name_of)
def test_a_package_has_at_most_14_modules(package):
    assert len([path for path in package.glob("*.py") if path.name != "__init__.py"]) <= 14
