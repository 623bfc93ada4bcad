"""Archives that the tests unpack."""

import tarfile
from pathlib import Path
from typing import Any


def unpack(archive: Path, folder: Path) -> None:
    """Unpack a tar archive. The Python of Debian 12 (3.11.2) has no filters yet."""
    given: dict[str, Any] = {}
    if hasattr(tarfile, "data_filter"):
        given["filter"] = "data"
    with tarfile.open(archive) as file:
        file.extractall(folder, **given)
