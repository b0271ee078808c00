"""A local HTTP server with the part of the Hugging Face hub that downloads use.

Headers are as huggingface_hub's `get_hf_file_metadata` and `hf_raise_for_status` read them.
"""

import hashlib
import re
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler

from huggingface_hub import constants
from publisher import address_of


class Hub:
    """`files`: name -> bytes of the only model; `asked`: (method, path, Range header) of each request."""

    def __init__(self, model, commit, files):
        self.model, self.commit, self.files = model, commit, files
        self.asked, self.url = [], None
        self.cut_after = None  # bytes after which the next response is cut
        self.gated = False
        self.spoil = False  # content does not match its SHA-256

    def find(self, path):
        """Return (status, headers, content) of a path."""
        match = re.fullmatch(r"/(\w+/\w+)/resolve/(\w+)/([\w.]+)", path)
        if not match or match[1] != self.model:
            return 404, {"X-Error-Code": "RepoNotFound", "X-Error-Message": "Repository not found"}, b""
        if self.gated:
            return 403, {"X-Error-Code": "GatedRepo", "X-Error-Message": "Access is restricted"}, b""
        revision, name = match[2], match[3]
        if revision not in ("main", self.commit):
            return 404, {"X-Error-Code": "RevisionNotFound", "X-Error-Message": "Invalid rev id"}, b""
        if name not in self.files:
            return 404, {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": self.commit}, b""
        content = self.files[name]
        etag = hashlib.sha256(content).hexdigest()
        if self.spoil:
            content = bytes(len(content))
        return 200, {"X-Repo-Commit": self.commit, "ETag": f'"{etag}"', "Accept-Ranges": "bytes"}, content


@contextmanager
def serving(hub: Hub):
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_HEAD(self):
            self.answer(body=False)

        def do_GET(self):
            self.answer(body=True)

        def answer(self, body):
            hub.asked.append((self.command, self.path, self.headers.get("Range")))
            status, headers, content = hub.find(self.path)
            size = len(content)
            part = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range") or "")
            if status == 200 and part:
                status, content = 206, content[int(part[1]) :]
                headers = {**headers, "Content-Range": f"bytes {part[1]}-{size - 1}/{size}"}
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(content))}.items():
                self.send_header(name, value)
            self.end_headers()
            if not body:
                return
            if hub.cut_after is not None and hub.cut_after < len(content):
                content, hub.cut_after = content[: hub.cut_after], None
                self.close_connection = True
            self.wfile.write(content)

        def log_message(self, *_):
            pass

    with address_of(Handler) as hub.url:
        yield hub


def set_endpoint(monkeypatch, url):
    """Set the endpoint as HF_ENDPOINT does on import."""
    monkeypatch.setattr(constants, "ENDPOINT", url)
    template = constants.HUGGINGFACE_CO_URL_TEMPLATE
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", url + template[template.index("/{repo_id}") :])
