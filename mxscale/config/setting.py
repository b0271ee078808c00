"""A field of the configuration with its rule: help text, unit, choices and range."""

import dataclasses
import math
import re
from typing import Any, Iterator, Optional, Sequence, Tuple

from mxscale.util.errors import ConfigError, nearest

MAX_SEED = 2**31 - 1
# Files hold the name of the folder. Bytes that are no UTF-8 are read as \udc80 to \udcff (surrogateescape)
FOLDER = {"pattern": "(?!\\s*\\Z|-)[^\udc80-\udcff]+", "form": "a folder in UTF-8; ./-x if it begins with -"}
SMALLEST, LARGEST = 2.0**-126, (2 - 2.0**-23) * 2.0**127  # normal float32, which MXNet's operators take


@dataclasses.dataclass(frozen=True)
class Rule:
    """What one setting means and which values it takes. For a list, choices and range hold for each element."""

    help: str
    unit: Optional[str] = None
    choices: Tuple[str, ...] = ()
    meanings: Tuple[str, ...] = ()  # of the choices, if they are entries of a registry
    low: Optional[float] = None  # smallest value
    high: Optional[float] = None  # largest value
    above: Optional[float] = None  # in place of low: values must be larger than this
    keyword: Optional[str] = None  # in place of a number, such as "auto"; the number must then be an integer
    pattern: Optional[str] = None  # regular expression of the whole text
    form: str = ""  # what the pattern describes, such as "a name that ends in .html"
    length: Optional[int] = None  # of a list
    required: str = ""  # how to give the value, if null and [] are no values

    @property
    def allowed(self) -> str:
        """The choices, the form or the range as text, such as "from 0 to 1"; "" if every value is allowed."""
        if self.choices:
            return " | ".join(self.choices)
        if self.pattern is not None:
            return self.form
        if self.keyword is not None:
            limit = f"at least {self.low}" if self.high is None else f"{self.low} to {self.high}"
            return f"{self.keyword} or a whole number of {limit}"
        if self.low is not None and self.high is not None:
            return f"from {self.low} to {self.high}"
        bounds = (("above", self.above), ("at least", self.low), ("at most", self.high))
        return " and ".join(f"{words} {bound}" for words, bound in bounds if bound is not None)

    def check(self, key: str, value: Any) -> None:
        """Raise ConfigError if `value` breaks the rule. None passes unless it is required or the rule has a keyword."""
        if self.required and value in (None, "", []):
            raise ConfigError(f"{key} is missing: {self.required}")
        if value is None and self.keyword is None:
            return
        elements = value if isinstance(value, list) and self.keyword is None else [value]
        if self.length not in (None, len(elements)):
            raise ConfigError(f"{key}={value}: expected {self.length} numbers")
        for element in elements:
            if violation := self._violation(element):
                raise ConfigError(f"{key}={element}{violation}")

    def _violation(self, value: Any) -> str:
        """Return the end of the error message for a value, or an element of a list; "" for one that is allowed."""
        if self.choices:
            return "" if value in self.choices else nearest(value, self.choices)
        if self.keyword is not None:
            is_allowed = value == self.keyword or (type(value) is int and self._in_range(value))
        elif self.pattern is not None:
            is_allowed = re.fullmatch(self.pattern, str(value))
        else:
            is_allowed = isinstance(value, bool) or not isinstance(value, (int, float)) or self._in_range(value)
            if not is_allowed and (0 < abs(value) < SMALLEST or LARGEST < abs(value) < math.inf):
                return ": expected a size from 1.2e-38 to 3.4e38, as float32 has them"
        return "" if is_allowed else f": expected {self.allowed or 'a finite number'}"

    def _in_range(self, number: float) -> bool:
        return (
            (number == 0 or SMALLEST <= abs(number) <= LARGEST)
            and (self.low is None or number >= self.low)
            and (self.high is None or number <= self.high)
            and (self.above is None or number > self.above)
        )


def setting(default: Any, help: str, *, choices: Sequence[str] = (), **rule: Any) -> Any:
    """Return a dataclass field with its rule in the metadata.

    Args:
        default: The default value; lists and dictionaries are copied for each instance.
        help: One line that states what the setting does.
        choices: The valid values; of a registry's entries the help is shown too.
        **rule: Other attributes of `Rule`, such as unit, low and high.
    """
    entries = choices.values() if isinstance(choices, dict) else ()
    meanings = tuple(entry.help for entry in entries if hasattr(entry, "help"))
    metadata = {"rule": Rule(help, choices=tuple(choices), meanings=meanings, **rule)}
    if isinstance(default, (list, dict)):
        return dataclasses.field(default_factory=default.copy, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


@dataclasses.dataclass(frozen=True)
class Description:
    """One setting as help texts and pages list it."""

    group: str  # "" for the settings outside any group
    key: str  # with its group, such as "optimizer.lr"
    default: Any
    rule: Rule


def describe(cls: type, group: str = "") -> Iterator[Description]:
    """Yield a Description for each setting of a dataclass, those of nested groups after its own.

    Args:
        cls: A dataclass whose fields are made by `setting`, or are groups: dataclasses of such fields.
        group: The key of `cls` itself, such as "data"; "" for the root.
    """
    prefix = f"{group}." if group else ""
    groups = []
    for field in dataclasses.fields(cls):
        if dataclasses.is_dataclass(field.default_factory):
            groups.append((field.default_factory, prefix + field.name))
            continue
        default = field.default if field.default is not dataclasses.MISSING else field.default_factory()
        yield Description(group, prefix + field.name, default, field.metadata["rule"])
    for nested, name in groups:
        yield from describe(nested, name)
