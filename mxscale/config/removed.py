"""Names of earlier versions, and what replaces them: settings, choices of a group (`launch=docker`) and verbs."""

from typing import Dict, Optional

MODEL_TOOL = "run python tools/scaling_model.py [FIGURE.png] in a checkout"
INSTEAD: Dict[str, str] = {
    "leave_out": MODEL_TOOL,
    "figure": MODEL_TOOL,
}


def refusal(name: str) -> Optional[str]:
    """Return what to do instead of a removed name; None for any other name."""
    return f"{name} was removed: {INSTEAD[name]}" if name in INSTEAD else None
