"""Save a picture of a run's page in MLflow, with its whole description: python tools/mlflow_page.py ADDRESS FILE.png"""

import sys
import tempfile
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests/support"))
import browser

ASSISTANT = '[data-component-id="mlflow.assistant.chat_panel.close"]'  # the button that closes its column


def main() -> None:
    address, file = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder, browser.opened(Path(folder)) as page:
        page.driver.set_window_size(1440, 1040)
        page.open(address)
        page.shows("Show more")
        page.driver.execute_script("document.querySelector(arguments[0])?.click()", ASSISTANT)
        page.click("Show more")
        page.has_image("get-artifact?path=learning-curves.png")
        page.driver.save_screenshot(file)


if __name__ == "__main__":
    main()
