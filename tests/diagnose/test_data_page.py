"""mxscale data: the page on a folder of images."""

import re

import pytest
from image_trees import make_tree, paint
from refusals import command_error

from mxscale.cli import main
from mxscale.launcher.choices import MeasuredRates


@pytest.fixture
def page(tmp_path, monkeypatch, capsys):
    """Return the page on a folder with an unusual size, an unusable file and a copy in another class."""
    monkeypatch.setattr(MeasuredRates, "_measured", lambda self, name, size, batch: 1000.0)
    root = make_tree(tmp_path / "set", {"ant <b>": 12, "bee": 20})
    paint(root / "bee" / "IMG_1.png", (9, 9, 9), (300, 400))
    (root / "bee" / "copy.png").write_bytes((root / "ant <b>" / "000.png").read_bytes())
    (root / "ant <b>" / "broken.jpg").write_bytes(b"no image")
    argv = ["data", str(root), f"data.cache={tmp_path}", f"output={tmp_path}/page.html", "data.pack_format=png"]
    assert main.main(argv) == 0
    printed = capsys.readouterr().out
    assert "sizes     34 of 35 images read: smallest 20 x 16" in printed
    assert printed.endswith(f"next: mxscale finetune data=imagefolder data.root={root}\n")
    return (tmp_path / "page.html").read_text()


def test_a_page_shows_counts_sizes_samples_and_an_augmented_batch(page):
    text = re.sub(r"<[^>]*>|\s+", " ", page.split("</style>")[-1])
    assert re.search(r"ant &lt;b&gt; +10 +1 +1 .*bee +18 +2 +2 ", text)
    assert "largest 300 x 400 (bee/IMG_1.png)" in text
    assert re.search("1 images are less than half or more than twice the median: .* 300 x 400 +bee/IMG_1.png", text)
    assert re.search(r"ant &lt;b&gt;/broken.jpg +not an image", text)
    assert re.search(r" 1 +exact copies in another split or class", text)
    assert page.count("<figure>") == 24 and page.count("<img") == 24 + 12
    assert "<b>/" not in page


def test_a_page_needs_a_folder_of_images(tmp_path, capsys):
    assert "mxscale data ROOT" in command_error(capsys, "data")
    assert f"cannot read {tmp_path}/no" in command_error(capsys, "data", f"{tmp_path}/no")
    assert "expected a name that ends in .html" in command_error(capsys, "data", str(tmp_path), "output=page")
