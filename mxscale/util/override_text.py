"""The text of an override in Hydra's grammar."""


def quoted(text: str) -> str:
    """Return a text as Hydra's grammar quotes it."""
    return "'{}'".format(text.replace("'", r"\'"))
