"""The digest of a file of weights, which may be larger than the memory that is free."""

import hashlib


def of_file(path, algorithm: str = "sha256") -> str:
    """In hex.  Raises OSError."""
    digest = hashlib.new(algorithm)
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
