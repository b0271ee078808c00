"""One status out of those of the ranks."""

from mxscale.run.outcome import merge


def words(rank, exit=1, consequence=True, time_ms=0):
    return {"rank": rank, "exit": exit, "error": f"error of {rank}", "consequence": consequence, "time_ms": time_ms}


def test_of_ranks_without_a_word_the_first_to_go_is_named():
    assert merge([None, words(1), None], None, first_gone=2)["error"].startswith("rank 2 ended without a word")


def test_all_ranks_without_a_word_are_named_where_the_launcher_names_none_of_them():
    for first_gone in (None, 1):
        merged = merge([None, words(1), None], None, first_gone)
        assert merged["error"].startswith("rank 0, 2 ended without a word")


def test_a_ranks_own_failure_counts_more_than_who_went_first():
    merged = merge([words(0, consequence=False, time_ms=2), words(1, time_ms=1), None], None, first_gone=2)
    assert merged["error"] == "rank 0: error of 0"


def test_of_own_failures_the_earliest_is_the_cause():
    merged = merge([words(0, 1, False, time_ms=2), words(1, 3, False, time_ms=1)], None)
    assert (merged["exit"], merged["error"]) == (3, "rank 1: error of 1")
