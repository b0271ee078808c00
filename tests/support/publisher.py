"""A local HTTP server of files, with faults."""

import contextlib
import hashlib
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from mxscale.data.public.fetch import File


class Publisher:
    """`files`: name -> content. `cuts`: bytes after which the next responses are cut; None: complete.

    `statuses`: of the next responses. `asked`: the name of each request.
    """

    def __init__(self):
        self.files, self.cuts, self.statuses, self.asked = {}, [], [], []
        self.headers = {}

    def url(self, name: str) -> str:
        return f"{self.base}/{name}"

    def file(self, name: str, **changed) -> File:
        """Return its entry in a table of files."""
        content = self.files[name]
        known = File(name, len(content), hashlib.sha256(content).hexdigest(), (self.url(name),))
        return known._replace(**changed)

    @contextlib.contextmanager
    def serving(self):
        with address_of(_handler(self)) as address:
            self.base = f"{address}/sets"
            yield self


@contextlib.contextmanager
def address_of(handler):
    """Run a server with that handler of requests within the block; yield its address."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _handler(publisher: Publisher):
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            name = self.path.rpartition("/")[2]
            publisher.asked.append(name)
            status = publisher.statuses.pop(0) if publisher.statuses else 200
            content = publisher.files.get(name)
            if content is None or status != 200:
                self.send_response(404 if content is None else status)
                for key, value in publisher.headers.items():
                    self.send_header(key, value)
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            cut = publisher.cuts.pop(0) if publisher.cuts else None
            self.wfile.write(content[:cut])  # the connection then ends: HTTP/1.0

        def log_message(self, *_):
            pass

    return Handler
