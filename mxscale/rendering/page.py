"""The files of a report: a self-contained HTML page, texts, and figures."""

import tempfile
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Dict, Iterator, List, Sequence

from mxscale.rendering.canvas import Drawn
from mxscale.util.errors import ConfigError

DRAWING = ("matplotlib", "jinja2", "alembic")  # installed with the full MLflow package
BASE = Path(__file__).parent  # of base.html


def lacking() -> List[str]:
    """Return the missing libraries of those that draw, and read the store."""
    return [name for name in DRAWING if find_spec(name) is None]


def check_installed(feature: str) -> None:
    """Raise ConfigError if a library is missing that draws and reads the store for the verb or setting `feature`."""
    if missing := lacking():
        raise ConfigError(
            f"{feature} needs {' and '.join(missing)}, which ranks' images leave out: use a checkout's .venv"
        )


def render(template: Path, **facts: Any) -> str:
    """Return the page of a template; all values in `facts` are escaped except the SVG of figures."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup

    environment = Environment(
        loader=FileSystemLoader([template.parent, BASE]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["drawing"] = Markup
    return environment.get_template(template.name).render(**facts)


@contextmanager
def _writing(folder: Path, key: str) -> Iterator[None]:
    """Create the folder of a report, the value of `key`; a failed write there becomes a ConfigError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        raise ConfigError(f"{key}={folder}: not writable ({error.strerror}); name another") from None


def prepare(folder: Path, key: str = "output") -> None:
    """Create the folder of a report. Raises ConfigError if the folder, the value of `key`, is not writable."""
    with _writing(folder, key):
        tempfile.TemporaryFile(dir=folder).close()


def save(texts: Dict[str, str], drawn: Sequence[Drawn], folder: Path, key: str = "output") -> List[Path]:
    """Write the texts and PNG files. Raises ConfigError if the folder, the value of `key`, is not writable or full."""
    contents = {name: text.encode() for name, text in texts.items()}
    contents.update({f"{figure.name}.png": figure.png for figure in drawn})
    with _writing(folder, key):
        for name, content in contents.items():
            (folder / name).write_bytes(content)
    return [folder / name for name in contents]
