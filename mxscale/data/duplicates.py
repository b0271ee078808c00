"""Exact copies among the images of a set: by the bytes of their files, before anything is packed."""

from typing import Any, Dict, Optional, Tuple


class Copies:
    """Counts them as images go by, split after split.  One in two splits spoils what the later one measures."""

    def __init__(self):
        self._names: Dict[str, Dict[bytes, str]] = {}  # split -> key -> the first of that content
        self.within: Dict[str, int] = {}
        self.across = 0
        self.example: Optional[Tuple[str, str, str, str]] = None

    def seen(self, key: bytes, name: str, split: str) -> None:
        here = self._names.setdefault(split, {})
        self.within.setdefault(split, 0)
        if key in here:
            self.within[split] += 1
            return
        here[key] = name
        for earlier, names in self._names.items():
            if earlier != split and key in names:
                self.across += 1
                self.example = self.example or (names[key], earlier, name, split)
                return

    def in_manifest(self) -> Dict[str, Any]:
        return {"within": self.within, "across": self.across, "example": self.example and list(self.example)}
