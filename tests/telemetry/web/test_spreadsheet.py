"""Cells that a spreadsheet does not run."""

import csv
import io

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from telemetry.rules.chart_series import series
from telemetry.rules.rollup import MinuteTotals
from telemetry.web.csv_answer import csv_answer
from telemetry.web.spreadsheet import FORMULA, escape_formula, series_rows

pytestmark = pytest.mark.pure


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=12))
def test_no_text_begins_as_a_formula(text) -> None:
    assert escape_formula(text)[:1] not in tuple(FORMULA)


def test_numbers_keep_their_sign() -> None:
    assert (escape_formula(-5), escape_formula(-0.5), escape_formula("-5")) == (
        "-5",
        "-0.5",
        "'-5",
    )


def test_holes_are_empty_cells_and_an_odd_name_is_tamed() -> None:
    minute = MinuteTotals(n=2, util_n=2, util_sum_pct=100, util_max_pct=60)
    made = series([(60, minute)], start=0, end=120, step_seconds=60)
    head, hole, row = series_rows(made, of='=cmd|"/C calc"!A0')
    assert hole[1:] == ["1970-01-01T00:00:00Z", "60", "0", *[""] * 8]
    told = dict(zip(head, row, strict=True))
    assert told["of"].startswith("'=")
    assert (told["util_avg_pct"], told["power_avg_watts"]) == ("50.0", "")
    sheet = io.StringIO()
    csv.writer(sheet).writerows([head, row])
    assert len(sheet.getvalue().splitlines()) == 2


def test_a_file_has_empty_cells_for_what_is_not_known() -> None:
    answer = csv_answer("rows.csv", [["name", "by"], ["=1+1", None]])
    assert answer.text.splitlines() == ["name,by", "'=1+1,"]
    assert answer["Content-Disposition"] == 'attachment; filename="rows.csv"'
