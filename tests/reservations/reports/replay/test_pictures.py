"""The page's sentences about a measure under two policies."""

import pytest

from reservations.reports.replay.pictures import ReplayMeasure


@pytest.mark.parametrize(
    ("before", "after", "unit", "better", "words", "verdict"),
    [
        (0.1001, 0.0999, "h", -1, ("0.10 h", "0.10 h"), "same"),
        (0.104, 0.096, "h", -1, ("0.10 h", "0.10 h"), "same"),
        (0.1, 0.2, "h", -1, ("0.10 h", "0.20 h"), "worse"),
        (0.2, 0.1, "h", -1, ("0.20 h", "0.10 h"), "better"),
        (0.80041, 0.80044, "ratio", 1, ("80.0 %", "80.0 %"), "same"),
        (0.8, 0.9, "ratio", 1, ("80.0 %", "90.0 %"), "better"),
    ],
)
def test_what_looks_the_same_is_called_the_same(
    before, after, unit, better, words, verdict
) -> None:
    figure = ReplayMeasure("Mean wait", before, after, unit, better)
    assert figure.words == words
    assert figure.verdict == verdict
