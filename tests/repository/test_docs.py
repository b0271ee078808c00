"""The documentation is short, its links resolve, and the code that it names exists."""

import ast
import re

import pytest
from repository import PAGES, ROOT, name_of

UNLIMITED = {"log.md", "claims.md"}  # the dated log; generated
LIMITS = {"README.md": 900, "docs/architecture.md": 1200, "docs/benchmarks-exchange.md": 1800}  # words


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_a_page_keeps_its_limit_of_words(page):
    if page.name not in UNLIMITED:
        assert len(page.read_text().split()) <= LIMITS.get(name_of(page), 1500)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_of_a_page_resolve(page):
    links = re.findall(r"\]\((?!https?:)([^)#]+)(?:#[^)]*)?\)", page.read_text())
    assert [link for link in links if not (page.parent / link).exists()] == []


def test_the_index_lists_every_page():
    index = (ROOT / "docs" / "README.md").read_text()
    pages = {page.name for page in (ROOT / "docs").glob("*.md")} - {"README.md"}
    assert {page for page in pages if f"({page})" not in index} == set()


def named_code():
    """Yield (page, file, dotted name) of every `path.py:name` in the documentation."""
    for page in PAGES:
        for path, name in re.findall(r"`([\w/]+\.py):([\w.]+)`", page.read_text()):
            yield name_of(page), path, name


@pytest.mark.parametrize("page, path, name", sorted(set(named_code())))
def test_code_that_a_page_names_exists(page, path, name):
    file = next(folder / path for folder in (ROOT, ROOT / "mxscale") if (folder / path).is_file())
    body = ast.parse(file.read_text()).body
    for part in name.split("."):
        found = [node for node in body if getattr(node, "name", None) == part or part in targets(node)]
        assert found, f"{page} names {path}:{name}"
        body = getattr(found[0], "body", [])


def targets(node) -> list:
    """Return the names that an assignment binds."""
    bound = [*getattr(node, "targets", []), *([node.target] if isinstance(node, ast.AnnAssign) else [])]
    return [target.id for target in bound if isinstance(target, ast.Name)]
