"""The documentation is short, its links resolve, and the code that it names exists."""

import ast
import re

import pytest
from repository import PAGES, ROOT, name_of

import mxscale

DOCS = [page for page in PAGES if page.is_relative_to(ROOT / "docs")]
LIMITS = {"README.md": 900, "docs/benchmarks.md": 2500, "docs/published-works.md": 3300, "CHANGELOG.md": 2000}  # words


def words(pages) -> int:
    return sum(len(page.read_text().split()) for page in pages)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_a_page_keeps_its_limit_of_words(page):
    assert words([page]) <= LIMITS.get(name_of(page), 1500)


def test_all_pages_together_keep_their_limit_of_words():
    assert words(DOCS) <= 32_000 and words(PAGES) <= 36_000


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_of_a_page_resolve(page):
    links = re.findall(r"\]\((?!https?:)([^)#]*)(?:#([^)]*))?\)", page.read_text())
    links = [(page.parent / link if link else page, anchor) for link, anchor in links if "/actions/" not in link]
    assert [str(path) for path, _ in links if not path.exists()] == []
    assert [f"{path}#{anchor}" for path, anchor in links if anchor and anchor not in anchors(path)] == []


def anchors(page) -> set:
    """Return the anchors of a page's headings, as GitHub names them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_changelog_and_citation_have_the_version():
    assert f"\nversion: {mxscale.__version__}\n" in (ROOT / "CITATION.cff").read_text()
    changelog = (ROOT / "CHANGELOG.md").read_text()
    assert "\n## [Unreleased]\n" in changelog and f"\n## [{mxscale.__version__}] - " in changelog


def test_the_index_lists_every_page():
    index = (ROOT / "docs" / "README.md").read_text()
    pages = {page.name for page in (ROOT / "docs").glob("*.md")} - {"README.md"}
    assert {page for page in pages if f"({page})" not in index} == set()
    notes = ROOT / "docs" / "experiments"
    index = (notes / "README.md").read_text()
    assert {page.name for page in notes.glob("*.md") if f"({page.name})" not in index} == {"README.md"}


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
