"""Reports as one self-contained HTML file."""

from pathlib import Path
from typing import Any

TEMPLATES = Path(__file__).parent


def render(template: str, **facts: Any) -> str:
    """Return the page of TEMPLATE.html; all values in `facts` are escaped except the SVG of figures."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup

    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["drawing"] = Markup
    return environment.get_template(f"{template}.html").render(**facts)
