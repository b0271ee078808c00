"""The names of classes that data.classes gives: a list in the settings, or a file with a name in each line."""

import os
from typing import List, Optional

from mxscale.config.schema import Data
from mxscale.util.errors import ConfigError
from mxscale.util.regular_files import open_regular


def class_names(data: Data) -> Optional[List[str]]:
    """Return the names of data.classes in label order; None for all classes of the set.

    Raises:
        ConfigError: The file cannot be read, is empty, or has a name twice.
    """
    if not isinstance(data.classes, str):
        return data.classes
    where = f"data.classes={data.classes}"
    lines = {}  # name -> line
    try:
        with open_regular(os.path.expanduser(data.classes), "r", encoding="utf-8-sig") as file:
            for number, line in enumerate(file, 1):
                name = line.strip()
                if name in lines:
                    raise ConfigError(f"{where} line {number}: {name} is in line {lines[name]} too; list it once")
                if name:
                    lines[name] = number
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8"
        raise ConfigError(f"{where}: {reason.lower()}; expected a text file with a class in each line") from None
    if not lines:
        raise ConfigError(f"{where} is empty: expected a class in each line")
    return list(lines)
