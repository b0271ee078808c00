"""Aliases in YAML (`&name`, `*name`), with which a short file can stand for billions of values."""

import yaml

MAX_VALUES = 100_000


def check(text: str) -> None:
    """Raise yaml.YAMLError if the text is invalid, stands for more than MAX_VALUES values, or contains itself."""
    if "*" in text and "&" in text:
        try:
            values = _size(yaml.compose(text, yaml.SafeLoader), {})
        except RecursionError:
            raise yaml.YAMLError("it is nested too deeply") from None
        if values > MAX_VALUES:
            raise yaml.YAMLError(f"its aliases stand for more than {MAX_VALUES:,} values")


def _size(node, known: dict) -> int:
    """Return the number of values of a node and below it; each node is visited once."""
    if node is None or isinstance(node, yaml.ScalarNode):
        return 1
    if id(node) not in known:
        known[id(node)] = MAX_VALUES + 1  # until its size is known: it may contain itself
        parts = (part for pair in node.value for part in pair) if isinstance(node, yaml.MappingNode) else node.value
        known[id(node)] = 1 + sum(_size(part, known) for part in parts)
    return known[id(node)]
