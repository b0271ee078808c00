"""Downloads from a real server: complete, interrupted and refused ones."""

import os
import threading

import numpy as np
import pytest
from refusals import error_of

from mxscale.data.public import fetch
from mxscale.data.public.fetch import File, Place, obtain

CONTENT = np.random.RandomState(0).bytes(300_007)
NAME = "set.tar"


@pytest.fixture
def publisher(publisher):
    publisher.files[NAME] = CONTENT
    return publisher


@pytest.fixture
def place(tmp_path):
    return Place(str(tmp_path / "set"), "data.root=set", "http://page")


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch):
    monkeypatch.setattr(fetch, "BACKOFF_S", 0.01)


def refused(files, place) -> str:
    return error_of(obtain, files, place)


def there(place):
    """Return {name: content} of the files in the folder."""
    return {name: open(os.path.join(place.folder, name), "rb").read() for name in sorted(os.listdir(place.folder))}


def test_a_file_is_fetched_once_and_then_verified(publisher, place):
    file = publisher.file(NAME)
    assert obtain([file], place) == {NAME: file.sha256} == obtain([file], place)
    assert there(place) == {NAME: CONTENT} and publisher.asked == [NAME]


def test_a_placed_file_is_not_fetched(publisher, place):
    os.makedirs(place.folder)
    with open(os.path.join(place.folder, NAME), "wb") as file:
        file.write(CONTENT)
    obtain([publisher.file(NAME)], place)
    assert publisher.asked == []


def test_a_mirror_replaces_the_publishers_address(publisher, place):
    file = publisher.file(NAME, urls=("http://127.0.0.1:9/never",))
    obtain([file], place._replace(mirror=publisher.base + "/"))
    assert there(place) == {NAME: CONTENT}


def test_addresses_are_tried_in_order(publisher, place):
    urls = (publisher.url("nowhere"), "http://host.invalid/set.tar", publisher.url(NAME))
    obtain([publisher.file(NAME, urls=urls)], place)
    assert there(place) == {NAME: CONTENT}


def test_concurrent_processes_fetch_once(publisher, place):
    threads = [threading.Thread(target=obtain, args=([publisher.file(NAME)], place)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert there(place) == {NAME: CONTENT} and len(publisher.asked) == 1


@pytest.mark.parametrize("known", [{}, {"bytes": None, "sha256": None}])
def test_an_interrupted_download_leaves_nothing(publisher, place, known):
    file, publisher.cuts = publisher.file(NAME, **known), [1000]
    assert "connection lost" in refused([file], place) and there(place) == {}
    obtain([file], place)
    assert there(place)[NAME] == CONTENT


def test_an_interruption_is_followed_by_the_next_address(publisher, place):
    publisher.cuts = [1000]
    obtain([publisher.file(NAME, urls=(publisher.url(NAME), publisher.url(NAME)))], place)
    assert there(place) == {NAME: CONTENT}


def test_a_killed_download_is_replaced(publisher, place):
    os.makedirs(place.folder)
    with open(os.path.join(place.folder, NAME + ".part"), "wb") as file:
        file.write(CONTENT + b"more")
    obtain([publisher.file(NAME)], place)
    assert there(place) == {NAME: CONTENT}


def test_a_busy_server_is_retried(publisher, place):
    publisher.statuses, publisher.headers = [503, 429], {"Retry-After": "0"}
    obtain([publisher.file(NAME)], place)
    assert there(place) == {NAME: CONTENT}


def test_other_content_of_the_same_length_is_refused(publisher, place):
    file = publisher.file(NAME)
    publisher.files[NAME] = CONTENT[:-1] + b"x"
    assert refused([file], place) == (
        f"data.root=set lacks {NAME}, and {NAME} cannot be fetched ({publisher.url(NAME)}: its SHA-256 is "
        f"not {file.sha256}): place them in {place.folder} (from http://page), or set data.mirror=URL"
    )
    assert there(place) == {}


@pytest.mark.parametrize("content, size", [(CONTENT[:-1], "300,006"), (CONTENT + b"x", "300,008")])
def test_another_length_is_refused_before_fetching(publisher, place, content, size):
    file = publisher.file(NAME)
    publisher.files[NAME] = content
    assert f"has {size} bytes, not 300,007" in refused([file], place)


def test_a_wrong_placed_file_is_refused_and_unchanged(publisher, place):
    os.makedirs(place.folder)
    path = os.path.join(place.folder, NAME)
    for content, how in ((CONTENT[:-1] + b"x", "has the SHA-256 "), (CONTENT[:-1], "has 300,006 bytes, not 300,007")):
        with open(path, "wb") as file:
            file.write(content)
        text = refused([publisher.file(NAME)], place)
        assert text.startswith(f"data.root=set: {path} {how}") and "remove it, and it is fetched again" in text
        assert there(place) == {NAME: content} and publisher.asked == []


def test_without_a_server_files_and_folder_are_named(place):
    urls = ("http://127.0.0.1:9/a", "http://host.invalid/a")
    text = refused([File("a", 1, "0", urls), File("b", 1, "0", urls)], place)
    assert text == (
        "data.root=set lacks a, b, and a cannot be fetched (http://127.0.0.1:9/a: connection refused; "
        f"http://host.invalid/a: unknown host): place them in {place.folder} (from http://page), or set data.mirror=URL"
    )


def test_a_missing_address_is_not_retried(publisher, place):
    assert "404 Not Found" in refused([publisher.file(NAME, urls=(publisher.url("gone"),))], place)
    assert len(publisher.asked) == 1


def test_an_unwritable_folder_is_one_line(publisher, place, tmp_path):
    (tmp_path / "set").write_text("a file")
    below = place._replace(folder=f"{place.folder}/below")
    assert f"cannot read or write the files in {below.folder} (not a directory)" in refused(
        [publisher.file(NAME)], below
    )


def test_without_a_published_checksum_the_first_is_recorded(publisher, place):
    unknown = publisher.file(NAME, bytes=None, sha256=None)
    known = publisher.file(NAME).sha256
    assert obtain([unknown], place) == {NAME: known} == obtain([unknown], place)
    assert there(place)[NAME + ".sha256"] == f"{known}  {NAME}\n".encode()
    with open(os.path.join(place.folder, NAME), "ab") as file:
        file.write(b"more")
    assert f", not {known}: it is damaged or another file" in refused([unknown], place)


@pytest.mark.parametrize("length", ["\xb2", "9" * 5000, "86400"])
def test_a_retry_after_is_ignored(publisher, place, length):
    publisher.statuses, publisher.headers = [503], {"Retry-After": length}
    obtain([publisher.file(NAME)], place)
    assert there(place) == {NAME: CONTENT}
