"""Tables for a spreadsheet, with cells that it will not run as formulas."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime

from telemetry.rules.chart_series import ChartSeries

FORMULA = "=+-@\t\r"
"""A cell that begins with one of these may be run as a formula (OWASP, "CSV
Injection")."""
_SPLIT = re.compile(r"([;\t\r\n]\s*)(?=[=+@-])")
_COLUMNS = (
    "n",
    "util_min_pct",
    "util_avg_pct",
    "util_max_pct",
    "memory_avg_bytes",
    "memory_max_bytes",
    "power_avg_watts",
    "temperature_max_celsius",
    "energy_joules",
)


def escape_formula(text: object) -> str:
    """Keep a spreadsheet from running a cell as a formula.

    This includes texts after a semicolon or a line end in the cell, because
    spreadsheets of languages with decimal commas split there.

    >>> [escape_formula(cell) for cell in ("=1+1", "node-a", -5, "a;=1+1")]
    ["'=1+1", 'node-a', '-5', "a;'=1+1"]
    """
    shown = str(text)
    if isinstance(text, int | float) or not shown:
        return shown
    shown = _SPLIT.sub(r"\1'", shown)
    return "'" + shown if shown[0] in FORMULA else shown


def series_rows(series: ChartSeries, *, of: str) -> Iterator[list[str]]:
    """Yield head and rows of a series. A gap is an empty cell, and not 0.

    Args:
        of: name of the subject. Formulas in it are escaped, because a Node or an
            Account may have an odd name.
    """
    yield ["of", "at", "seconds", *_COLUMNS]
    columns = [series[name] for name in _COLUMNS]  # type: ignore[literal-required]
    for at, *values in zip(series["at"], *columns, strict=True):
        instant = datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        cells = ["" if value is None else value for value in values]
        yield [escape_formula(x) for x in (of, instant, series["step_seconds"], *cells)]
