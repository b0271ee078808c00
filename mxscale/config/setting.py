"""A field of the configuration with its rule: help text, unit, choices and range."""

import dataclasses
import math
import re
from typing import Any, Iterator, Optional, Sequence, Tuple

from mxscale.util.errors import ConfigError, nearest

MAX_SEED = 2**31 - 1
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
        if self.keyword is not None:
            if value != self.keyword and not (type(value) is int and self._in_range(value)):
                raise ConfigError(f"{key}={value}: expected {self.allowed}")
            return
        if value is None:
            return
        elements = value if isinstance(value, list) else [value]
        for element in elements:
            if self.choices:
                if element not in self.choices:
                    raise ConfigError(f"{key}={element}{nearest(element, self.choices)}")
            elif self.pattern is not None:
                if not re.fullmatch(self.pattern, str(element)):
                    raise ConfigError(f"{key}={element}: expected {self.form}")
            elif isinstance(element, (int, float)) and not isinstance(element, bool) and not self._in_range(element):
                expected = self.allowed or "a finite number"
                if 0 < abs(element) < SMALLEST or LARGEST < abs(element) < math.inf:
                    zero = "0, or " if self._in_range(0) else ""
                    expected = f"{zero}a size from 1.2e-38 to 3.4e38, as float32 has them"
                raise ConfigError(f"{key}={value}: expected {'each ' if elements is value else ''}{expected}")

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
