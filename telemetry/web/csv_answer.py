"""A table as the answer to a request: a CSV file for a spreadsheet."""

import csv
from collections.abc import Iterable

from django.http import HttpResponse

from telemetry.web.spreadsheet import escape_formula


def csv_answer(name: str, rows: Iterable[Iterable[object]]) -> HttpResponse:
    """Send rows as a CSV file of this name. None is an empty cell, and not 0."""
    answer = HttpResponse(
        content_type="text/csv; charset=utf-8",
        headers={"Content-Disposition": f'attachment; filename="{name}"'},
    )
    csv.writer(answer).writerows(
        ["" if cell is None else escape_formula(cell) for cell in row] for row in rows
    )
    return answer
