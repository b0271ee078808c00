"""A case: an input, how the product is given it, and what a right result is."""

from dataclasses import dataclass
from typing import Callable, List, Optional, Tuple

MARKER = "Hunter2Xyz"  # a password in the environment and in settings; it must reach no output and no file
DONE, REFUSED = "passed", "refused"


def nothing() -> None:
    pass


@dataclass
class Case:
    """One input.

    Attributes:
        what: What was drawn, for the report.
        argv: The command line that gives the product the input.
        run: Calls the functions that the product calls for the input, in place of the command; None: that of the verb.
            Returns the exit status, None for 0; raises ConfigError to refuse the input.
        named: A refusal contains one of these.
        expect: DONE for valid input, REFUSED for damaged input, None if both are right.
        verify: Raises AssertionError if the result of exit status 0 is wrong.
        failure: What an error of exit status 1 contains if the input allows a failure, such as a loss of NaN.
        stdout: A standard output that takes nothing: a file, "closed" or "closed pipe".
    """

    what: str
    argv: List[str]
    named: Tuple[str, ...]
    run: Optional[Callable[[], Optional[int]]] = None
    expect: Optional[str] = None
    verify: Callable[[], None] = nothing
    failure: Optional[str] = None
    stdout: str = ""


def choice(draw, options):
    """Return one of the options, which may be of any type."""
    options = list(options)
    return options[int(draw.integers(len(options)))]
