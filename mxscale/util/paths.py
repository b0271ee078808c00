"""Paths that a user has written."""

import os


def absolute(path: str) -> str:
    """Return a path with its ~ replaced by the home folder, absolute and without `.` and `..`; links stay."""
    return os.path.abspath(os.path.expanduser(path))
