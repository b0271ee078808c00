"""Headless Chromium, driven by Selenium."""

import json
import shutil
from contextlib import contextmanager
from pathlib import Path

from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.support.ui import WebDriverWait

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-dev-shm-usage",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--window-size=2000,2000",
)  # fmt: skip
WAIT_S = 60.0  # for a page, on a slow machine


class Browser:
    """One window. A page is asserted on by its visible text."""

    def __init__(self, driver: webdriver.Chrome):
        self.driver, self._wait = driver, WebDriverWait(driver, WAIT_S, 0.3)

    def open(self, url: str) -> None:
        self.driver.switch_to.default_content()
        self.driver.get("about:blank")  # a new fragment alone would keep the page
        self.driver.get(url)

    def _until(self, script: str, what: str) -> None:
        """Wait until a function body in JavaScript returns true."""
        self._wait.until(lambda driver: driver.execute_script(script), f"no {what} on the page")

    def shows(self, *words: str) -> None:
        """Wait until all words are visible on the page."""
        for word in words:
            self._until(f"return document.body.innerText.includes({json.dumps(word)})", repr(word))

    def click(self, label: str) -> None:
        """Click the first button or link with exactly this text."""
        script = f"""const found = [...document.querySelectorAll('button, a, [role=tab], [role=menuitem]')]
          .find(each => each.innerText.trim() === {json.dumps(label)}); if (found) found.click(); return !!found"""
        self._until(script, f"button {label!r}")

    def has_image(self, source: str = "") -> None:
        """Wait until a large image whose address contains `source` is drawn."""
        script = f"""return [...document.images].some(
          each => each.src.includes({json.dumps(source)}) && each.complete && each.naturalWidth > 400)"""
        self._until(script, f"image {source}")

    def has_charts(self) -> None:
        """Wait until a chart has a line or a bar."""
        self._until("return document.querySelectorAll('.js-line, .point').length > 0", "chart")

    def in_frame(self) -> None:
        """Continue within the first frame of the page, until another page is opened."""
        self._until("return !!document.querySelector('iframe')", "frame")
        self.driver.switch_to.frame(0)


@contextmanager
def opened(folder: Path):
    """Open a window for the block."""
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in (*FLAGS, f"--user-data-dir={folder / 'profile'}"):
        options.add_argument(flag)
    driver = webdriver.Chrome(options, Service(DRIVER))  # with its path Selenium downloads no driver
    try:
        yield Browser(driver)
    finally:
        driver.quit()
