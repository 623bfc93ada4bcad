"""Where the files of served models lie, under MEDIA_ROOT/models.

One whole file is <number>.onnx. A model whose weights lie beside it is a folder
<number> with its parts under their numbers: no name that a person chose is ever a path
of ours.
"""

import contextlib
import shutil
from pathlib import Path

from django.conf import settings

from placement.models import ModelFile


def folder() -> Path:
    """The folder, made where it is missing."""
    path = Path(settings.MEDIA_ROOT) / "models"
    path.mkdir(parents=True, exist_ok=True)
    return path


def path_of(file: ModelFile, part: int = 0) -> Path:
    """Where a file's bytes are, or those of one of its parts; it may not exist."""
    place = Path(settings.MEDIA_ROOT) / "models"
    return place / str(file.pk) / str(part) if file.parts else place / f"{file.pk}.onnx"


def remove(file: ModelFile) -> None:
    """Delete a file's bytes, all parts of it."""
    with contextlib.suppress(FileNotFoundError):
        if file.parts:
            shutil.rmtree(path_of(file).parent)
        else:
            path_of(file).unlink()
