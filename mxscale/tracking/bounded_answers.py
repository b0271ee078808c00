"""Limits of the answers that the `requests` library reads into memory for MLflow; streamed files have none."""

from functools import wraps

from requests.adapters import HTTPAdapter
from requests.exceptions import ContentDecodingError
from urllib3 import HTTPResponse

MAX_BYTES = 64 << 20  # a page of 200 runs has a few MB
MAX_ERROR_BYTES = 16 << 10  # MLflow guesses the encoding of an error's text and quotes all of it
CHUNK = 64 << 10


def install() -> None:
    """Limit the answers of all sessions of this process: MLflow makes its own, and offers no hook for them."""
    if not hasattr(HTTPAdapter.send, "__wrapped__"):
        HTTPAdapter.send = _bounded(HTTPAdapter.send)
        HTTPResponse.drain_conn = HTTPResponse.close  # it reads the whole of a 503 to use the connection again


def _bounded(send):
    @wraps(send)
    def bounded(self, request, stream=False, **options):
        response = send(self, request, stream=stream, **options)
        whole = response.ok and not response.is_redirect  # `requests` reads the text of a redirect, streamed or not
        if stream and whole:
            return response
        content, limit = bytearray(), MAX_BYTES if whole else MAX_ERROR_BYTES
        for chunk in response.iter_content(CHUNK):
            content += chunk
            if len(content) > limit:
                response.close()
                break
        if whole and len(content) > limit:
            raise ContentDecodingError(f"the answer is longer than {limit >> 20} MB", response=response)
        response._content, response._content_consumed = bytes(content[:limit]), True
        return response

    return bounded
