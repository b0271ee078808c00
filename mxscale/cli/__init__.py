"""The command line."""

from pathlib import Path

CONF = Path(__file__).parents[1] / "conf"  # in a checkout a link to conf/ at the top level
