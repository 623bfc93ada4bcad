"""Where the files of served models lie: MEDIA_ROOT/models/<number>.onnx."""

from pathlib import Path

from django.conf import settings

from placement.models import ModelFile


def folder() -> Path:
    """The folder, made where it is missing."""
    path = Path(settings.MEDIA_ROOT) / "models"
    path.mkdir(parents=True, exist_ok=True)
    return path


def path_of(file: ModelFile) -> Path:
    """Where a file's bytes are."""
    return Path(settings.MEDIA_ROOT) / "models" / f"{file.pk}.onnx"
