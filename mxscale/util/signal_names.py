"""Names of signals, for messages."""

import signal


def signal_name(number: int) -> str:
    """Return the name of a signal, such as SIGKILL; `signal 37` for one without a name, a real-time signal."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
