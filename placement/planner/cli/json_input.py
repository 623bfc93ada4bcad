"""JSON from a file or from standard input, with a bound on its size."""

import json
import sys
from pathlib import Path

from placement.planner.values.errors import BadInput

MOST_FILE_BYTES = 16 * 2**20
"""Of JSON, which may take 50 times that in memory."""


def json_from(source: str, field: str) -> object:
    """Return the value in a file.

    Args:
        source: the file's path; ``-`` reads standard input.
        field: the option that names the file, for the errors.

    Raises:
        BadInput: it cannot be read, is larger than 16 MiB, or is not JSON.
    """
    try:
        if source == "-":
            data = sys.stdin.buffer.read(MOST_FILE_BYTES + 1)
        else:
            with Path(source).open("rb") as file:
                data = file.read(MOST_FILE_BYTES + 1)
    except OSError as error:
        why = error.strerror or "it is not a file"
        raise BadInput({field: f"{source[:200]}: cannot be read: {why}"}) from error
    if len(data) > MOST_FILE_BYTES:
        raise BadInput(
            {field: f"{source[:200]}: larger than {MOST_FILE_BYTES:,} bytes"}
        )
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise BadInput({field: f"{source[:200]}: is not JSON: {error}"}) from error
