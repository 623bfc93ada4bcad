"""The folder of the files of served models, MEDIA_ROOT/models.

A single file is <number>.onnx. A model with its weights in other files is a folder
<number> with its parts under their numbers. No name that a person chose is ever a path.
"""

import contextlib
import shutil
from pathlib import Path

from django.conf import settings

from placement.models import ModelFile


def folder() -> Path:
    """Return the folder. It is created if it is missing."""
    path = Path(settings.MEDIA_ROOT) / "models"
    path.mkdir(parents=True, exist_ok=True)
    return path


def path_of(file: ModelFile, part: int = 0) -> Path:
    """Return the path of a file, or of one of its parts. It may not exist."""
    place = Path(settings.MEDIA_ROOT) / "models"
    return place / str(file.pk) / str(part) if file.parts else place / f"{file.pk}.onnx"


def remove(file: ModelFile) -> None:
    """Delete a file with all its parts."""
    with contextlib.suppress(FileNotFoundError):
        if file.parts:
            shutil.rmtree(path_of(file).parent)
        else:
            path_of(file).unlink()
