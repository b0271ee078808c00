"""The errors that end a run with one line, and texts for their messages."""

import difflib
import signal


class ConfigError(ValueError):
    """Invalid input. The message is one line: what is wrong, where, and what to do. Ends a run with exit status 2."""


class RunFailed(Exception):
    """A failure that is no invalid input. The message is one line. Ends a run with exit status 1."""


def short(text) -> str:
    """Return a text from a file or a library, such as its error, as one line of at most 200 characters."""
    return " ".join(str(text).split())[:200]


def nearest(key: str, names, where: str = "", listed=None) -> str:
    """Return a suggestion for an unknown name, to be appended to an error message.

    Args:
        where: Prefix of the suggested name, such as "optimizer.".
        listed: Names to list if none is close; all of `names` by default.

    Returns:
        ": did you mean NAME?", or ": expected one of ..." if no name is close.
    """
    near = difflib.get_close_matches(str(key), [str(n) for n in names], n=1, cutoff=0.5)
    if near:
        return f": did you mean {where}{near[0]}?"
    return f": expected one of {', '.join(sorted(map(str, listed or names)))}"


def signal_name(number: int) -> str:
    """Return the name of a signal, such as SIGKILL; `signal 37` for one without a name, a real-time signal."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
