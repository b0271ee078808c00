"""The checkout that the tests belong to."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), ROOT / "data" / "README.md", *(ROOT / "docs").rglob("*.md")])


def name_of(path: Path) -> str:
    """Return a path relative to the repository, for ids of tests."""
    return str(path.relative_to(ROOT))
