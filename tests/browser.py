"""Headless Chromium, driven through chromedriver's own HTTP interface (the W3C WebDriver protocol)."""

import base64
import json
import shutil
import subprocess
import time
import urllib.error
import urllib.request
from contextlib import contextmanager
from pathlib import Path

from conftest import free_port, until

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-dev-shm-usage",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--window-size=2000,2000",
)  # fmt: skip
WAIT_S = 60.0  # for a page, on a slow machine


class Browser:
    """One window. A page is asserted on by its visible text."""

    def __init__(self, port: int, profile: Path):
        self.session = f"http://127.0.0.1:{port}/session"
        options = {"binary": CHROMIUM, "args": [*FLAGS, f"--user-data-dir={profile}"]}
        capabilities = {"alwaysMatch": {"browserName": "chrome", "goog:chromeOptions": options}}
        self.session += "/" + self._ask("POST", "", {"capabilities": capabilities})["sessionId"]

    def _ask(self, method: str, path: str, values=None):
        body = None if values is None else json.dumps(values).encode()
        asked = urllib.request.Request(self.session + path, body, {"Content-Type": "application/json"}, method=method)
        try:
            with urllib.request.urlopen(asked, timeout=WAIT_S) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as error:
            raise AssertionError(json.load(error)["value"]["message"].splitlines()[0]) from None

    def open(self, url: str) -> None:
        self._ask("POST", "/frame", {"id": None})
        self._ask("POST", "/url", {"url": "about:blank"})  # a new fragment alone would keep the page
        self._ask("POST", "/url", {"url": url})

    def run(self, script: str):
        """Return the value of a function body in JavaScript."""
        return self._ask("POST", "/execute/sync", {"script": script, "args": []})

    def text(self) -> str:
        return self.run("return document.body.innerText")

    def shows(self, *words: str) -> None:
        """Wait until all words are visible on the page. Raises AssertionError that names the missing ones."""
        deadline = time.monotonic() + WAIT_S
        while missing := [word for word in words if word not in (text := self.text())]:
            assert time.monotonic() < deadline, f"not on the page: {missing}\n{text}"
            time.sleep(0.3)

    def click(self, label: str) -> None:
        """Click the first button or link with exactly this text."""
        script = f"""const found = [...document.querySelectorAll('button, a, [role=tab], [role=menuitem]')]
          .find(each => each.innerText.trim() === {json.dumps(label)}); if (found) found.click(); return !!found"""
        until(lambda: self.run(script), WAIT_S, 0.3)

    def has_image(self, source: str = "") -> None:
        """Wait until a large image whose address contains `source` is drawn."""
        script = f"""return [...document.images].some(
          each => each.src.includes({json.dumps(source)}) && each.complete && each.naturalWidth > 400)"""
        until(lambda: self.run(script), WAIT_S, 0.3)

    def has_charts(self) -> None:
        """Wait until a chart has a line or a bar."""
        script = "return document.querySelectorAll('.js-line, .point').length > 0"
        until(lambda: self.run(script), WAIT_S, 0.3)

    def in_frame(self) -> None:
        """Continue within the first frame of the page, until another page is opened."""
        frame = until(lambda: self.run("return document.querySelector('iframe')"), WAIT_S, 0.3)
        self._ask("POST", "/frame", {"id": frame})

    def screenshot(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self._ask("GET", "/screenshot")))

    def close(self) -> None:
        self._ask("DELETE", "")


@contextmanager
def opened(folder: Path):
    """Start chromedriver and a window; end both with the block."""
    port = free_port()
    driver = subprocess.Popen([DRIVER, f"--port={port}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        until(lambda: _answers(port), WAIT_S)
        window = Browser(port, folder / "profile")
        try:
            yield window
        finally:
            window.close()
    finally:
        driver.terminate()
        driver.wait()


def _answers(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/status", timeout=1) as answer:
            return json.load(answer)["value"]["ready"]
    except OSError:
        return False
