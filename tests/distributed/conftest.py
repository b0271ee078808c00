"""The weights of a plain loop, computed once."""

import pytest
from in_process import prepared
from plain_loop import CASE, train_plainly


@pytest.fixture(scope="session")
def plain(data_cache, tmp_path_factory):
    return train_plainly(
        prepared(tmp_path_factory.mktemp("plain"), *CASE, f"data.cache={data_cache}", "launch.ranks=1")
    )
