"""Text as it may be printed, written and sent: without passwords, and without control characters."""

import os
import re

MASK = "***"
SECRET = (
    r"(?:password|passwd|passphrase|pass|pwd|pw|token|secret|credentials?|signature|sig|auth|authorization"
    r"|(?:api|access|account|private|secret|shared)[-_]?(?:access[-_]?)?key)"
)
# After these an address begins: http://, a setting such as tracking.uri=, a variable such as MLFLOW_TRACKING_URI=
BEGIN = r"(?:(?<!/)//(?:(?<!sqlite://)/+)?|uri['\"]?[=:](?!['\"\s]*[\w+.-]*:?//)\s*['\"]?/?)"
PORT = r"(?:(?<=http://)|(?<=https://))[^:/@\s]*:\d{1,5}(?:/|\s|$)"  # what follows is a path, which may have an @
# A password that is not percent-encoded may have / and @, so it ends at the last @ of the word; it may have spaces too.
# Each match takes the user's name even if no password follows, so that no character is searched from two beginnings.
USER = re.compile(rf"({BEGIN})(?!{PORT})([^:/@\s]*)(@|:@(?:\S+@)?|:(?:\S+@|[^@]+@(?:\S*@)?))?", re.IGNORECASE)
# The last character may belong to the text around the address
FIELD = re.compile(rf"({SECRET}|[?&]key)(=|%3D)[^&\s]*[^&\s'\",;:)\]}}]", re.IGNORECASE)
# Variables of the environment that hold a password or a key. A shorter value may be an ordinary word of the text.
VARIABLE = re.compile(r"(?:.*_)?(?:PASSWORD|PASSWD|PASSPHRASE|TOKEN|SECRET|(?:ACCESS|API|PRIVATE|SECRET)_?KEY)", re.I)
SHORTEST = 8
READ, SHOWN = 4000, 200  # characters of a server's text that are searched for passwords, and that are shown
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def redact(text: str) -> str:
    """Return the text with each password, token and key of its addresses and of the environment replaced by ***.

    An address begins with `//`, or follows a name that ends in `uri`. Its password is between the user and the last @,
    or the value of a field such as `api_key`. A setting may take the value of a variable (`${oc.env:HF_TOKEN}`), and an
    error then shows it. Redacting twice changes nothing more.
    """
    text = "\n".join(map(_without_users, text.split("\n")))
    text = FIELD.sub(rf"\1\2{MASK}", text)
    for name, value in os.environ.items():
        if len(value) >= SHORTEST and value in text and VARIABLE.fullmatch(name):
            text = text.replace(value, MASK)
    return text


def _without_users(line: str) -> str:
    end = line.rfind("@") + 1  # every password before it ends
    return USER.sub(_masked, line[:end]) + line[end:]


def _masked(match: re.Match) -> str:
    begin, user, password = match.groups()
    if password and password[1:2] not in ("", "@"):
        return f"{begin}{user}:{MASK}@"
    is_token = password and (user or password != "@") and not user.startswith(MASK)
    return f"{begin}{MASK}@" if is_token else match[0]


def redact_address(address: str) -> str:
    """Return an address, which may lack its scheme, with its passwords replaced by ***."""
    return redact(address) if re.match(r"[\w+.-]*:?//", address) else redact(f"//{address}")[2:]


def excerpt(text: str) -> str:
    """Return the beginning of a text that a server sent, as one redacted line; it is cut first, as it may be long."""
    return redact(" ".join(text[:READ].split()))[:SHOWN]


def shown(text: str) -> str:
    r"""Return the text for a terminal: redacted, control characters such as ESC written as \x1b."""
    return CONTROL.sub(lambda match: ascii(match[0])[1:-1], redact(text))
