"""Malformed requests to a served model."""

import base64
import json

import numpy as np

FORMATS = ("dataframe_records", "dataframe_split", "inputs", "instances")
TYPES = (
    "text/csv", "application/vnd.apache.parquet", "application/json; charset=utf-16", "application/json; x=y",
    "image/jpeg", "multipart/form-data; boundary=x", "", "*/*",
)  # fmt: skip
NUMBERS = (0, -1, 5, 5 * 10**9, 10**30, 2**63, -(2**63) - 1, 1.5, 1e308, float("nan"), float("-inf"))


class Requests:
    """Generates requests, (body, content type), from a seed and a valid image in base64."""

    def __init__(self, seed: int, image: str):
        self.stream, self.image = np.random.RandomState(seed), image
        self.kinds = (
            self.shape, self.column, self.split, self.params, self.top, self.several, self.content_type, self.damaged,
            self.not_json,
        )  # fmt: skip

    def __call__(self) -> tuple:
        body, content_type = self._of(self.kinds)(), "application/json"
        if isinstance(body, tuple):
            body, content_type = body
        return body if isinstance(body, bytes) else json.dumps(body).encode(), content_type

    def _of(self, choices):
        return choices[self.stream.randint(len(choices))]

    def valid(self) -> dict:
        return {"dataframe_records": [{"image": self.image}]}

    def value(self, depth: int = 0):
        """Return any JSON value."""
        made = [
            lambda: None,
            lambda: bool(self.stream.randint(2)),
            lambda: self._of(NUMBERS),
            self.text,
            lambda: [self.value(depth + 1) for _ in range(self.stream.randint(4))],
            lambda: {self._of(("image", "top", "data", "")): self.value(depth + 1)},
        ]
        return self._of(made if depth < 5 else made[:4])()

    def text(self) -> str:
        """Return an image that is truncated, not in base64, or not an image."""
        place = self.stream.randint(len(self.image))
        truncated = base64.b64decode(self.image)[: 3 * place // 4]
        noise = self.stream.bytes(self.stream.randint(200))
        encoded = (base64.b64encode(each).decode() for each in (truncated, noise))
        return self._of([*encoded, self.image[:place], "", "\u00e9\u0000", "\ud83d", "A" * 5000])

    def shape(self):
        return self._of([self.value(), {}, {self._of(FORMATS): self.value()}])

    def column(self):
        name = self._of(("image", "Image", "picture", "", "0"))
        return {self._of(FORMATS): self._of([[{name: self.value()}], {name: self.value()}, {name: [self.value()]}])}

    def split(self):
        names = self._of((["image"], ["image", "image"], [], self.value()))
        return {"dataframe_split": {"columns": names, "data": self._of([[[self.value()]], self.value()])}}

    def params(self):
        return {**self.valid(), "params": self.value()}

    def top(self):
        return {**self.valid(), "params": {"top": self.value(), "other": self.value()}}

    def several(self):
        return {**self.valid(), self._of((*FORMATS[1:], "messages", "prompt")): self.value()}

    def content_type(self):
        body = self._of([b"", self._of([b"image\nzz", b"\xff\xfe", self.stream.bytes(50)]), self.valid()])
        return body if isinstance(body, bytes) else json.dumps(body).encode(), self._of(TYPES)

    def damaged(self):
        body = bytearray(json.dumps(self.valid()).encode())
        for place in self.stream.randint(0, len(body), 3):
            body[place] = self.stream.randint(256)
        return bytes(body[: self._of((len(body), self.stream.randint(1, len(body))))])

    def not_json(self):
        return self._of([b"", b"null", b"[]", b"\x00", b"\xff\xfe\x80", b"{", b'{"inputs": }', b"NaN", b"1e999"])
