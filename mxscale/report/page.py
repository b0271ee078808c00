"""One HTML file that holds all of a report: no script to fetch, no image beside it."""

from pathlib import Path
from typing import Any

TEMPLATES = Path(__file__).parent


def render(template: str, **facts: Any) -> str:
    """The page of TEMPLATE.html; everything in `facts` is escaped but the figures' own SVG."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup

    house = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    house.filters["drawing"] = Markup
    return house.get_template(f"{template}.html").render(**facts)
