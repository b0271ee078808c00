"""Settings that several verbs have."""

import re
from typing import Any

from mxscale.config.schema import RULES
from mxscale.config.setting import setting

MAX_THREADS = RULES["data.threads"].high


def file_name(help: str, *endings: str) -> Any:
    """Return a setting for the name of a file with one of these endings; its default is null."""
    pattern = rf"(?s).*({'|'.join(map(re.escape, endings))})"
    return setting(None, help, pattern=pattern, form=f"a name that ends in {', '.join(endings)}")


def as_json(what: str) -> Any:
    return setting(False, f"print {what} in place of the table")
