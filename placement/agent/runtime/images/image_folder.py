"""A data set of images: a folder with one folder for each class.

With the folders ``train`` and ``validation`` (or ``val``, ``valid``, ``test``), each of
them has the folders of the classes, as in Hugging Face's ImageFolder. This module
imports no torch. The job checks the folder with it before torch is loaded.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from placement.agent.runtime.fine_tune_inputs import (
    config_of,
    model_folder,
    output_folder,
    output_problem,
    unreadable,
)
from placement.planner.values.errors import LaunchInvalid

FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF")
"""Pillow's names of the formats that are read. Others can start programs."""
SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff")
TRAIN = "train"
HELD_OUT = ("validation", "val", "valid", "test")
MOST_CLASSES = 100_000
OPENED = 20
"""Classes whose first image is opened before the training starts."""
PREPROCESSOR = "preprocessor_config.json"
COLOURS = 3


@dataclass(frozen=True)
class ImageFolder:
    """The images of a data set, and the class of each as a number."""

    classes: tuple[str, ...]
    """Their names, sorted."""
    train: tuple[tuple[Path, int], ...]
    held_out: tuple[tuple[Path, int], ...]
    """(): no folder for evaluation."""


def read_image_folder(folder: Path) -> ImageFolder:
    """Return the images of a data set.

    Raises:
        LaunchInvalid: at ``data``.
    """
    try:
        names = _folders_in(folder)
        if TRAIN not in names:
            _check_classes(folder, names)
            return ImageFolder(tuple(names), _images_of(folder, names), ())
        classes = _folders_in(folder / TRAIN)
        _check_classes(folder / TRAIN, classes)
        rest = next((name for name in HELD_OUT if name in names), None)
        held_out: tuple[tuple[Path, int], ...] = ()
        if rest is not None:
            there = _folders_in(folder / rest)
            if unknown := sorted(set(there) - set(classes)):
                wrong = f"{folder / rest} has classes that {TRAIN} lacks: {unknown[:5]}"
                raise LaunchInvalid({"data": wrong})
            held_out = _images_of(folder / rest, classes, there)
        train = _images_of(folder / TRAIN, classes)
    except OSError as error:
        raise LaunchInvalid({"data": unreadable(folder, error)}) from error
    return ImageFolder(tuple(classes), train, held_out)


def _folders_in(folder: Path) -> list[str]:
    """Return the names of a folder's folders, sorted. Hidden ones are left out."""
    return sorted(
        path.name
        for path in folder.iterdir()
        if path.is_dir() and not path.name.startswith(".")
    )


def _check_classes(folder: Path, names: list[str]) -> None:
    """Refuse too few or too many classes. Raises LaunchInvalid."""
    if not 2 <= len(names) <= MOST_CLASSES:
        raise LaunchInvalid(
            {
                "data": f"{folder} needs a folder for each of 2 to {MOST_CLASSES:,} "
                f"classes, and has {len(names)} folders"
            }
        )


def _images_of(
    folder: Path, classes: list[str], there: list[str] | None = None
) -> tuple[tuple[Path, int], ...]:
    """Return the images in the folders of the classes.

    Args:
        folder: of the folders.
        classes: all of them, in the order of their numbers.
        there: those that have a folder. None: all.
    """
    found: list[tuple[Path, int]] = []
    for number, name in enumerate(classes):
        if there is not None and name not in there:
            continue
        images = sorted(
            path
            for path in (folder / name).iterdir()
            if path.suffix.lower() in SUFFIXES
        )
        if not images:
            raise LaunchInvalid(
                {"data": f"{folder / name} has no images ({', '.join(SUFFIXES)})"}
            )
        found += [(path, number) for path in images]
    return tuple(found)


def opened_image(path: Path) -> Any:
    """Return a file as an RGB image of Pillow.

    Raises:
        OSError: it is no image of `FORMATS`, or it cannot be read.
    """
    from PIL import Image

    try:
        with Image.open(path, formats=FORMATS) as image:
            return image.convert("RGB")
    except (ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise OSError(f"{path} is no image that can be read: {error}") from error
    except OSError as error:
        # Pillow's own words do not always name the file.
        raise OSError(f"{path} is no image that can be read: {error}") from error


def check_image_inputs(settings: Mapping[str, Any], environ: Mapping[str, str]) -> None:
    """Check the model's folder, the images, the output folder and the package.

    Args:
        settings: of recipe ``fine-tune-images``.
        environ: of the Job.

    Raises:
        LaunchInvalid: every setting with a problem.
    """
    problems: dict[str, str] = {}
    try:
        problems |= _model_problems(model_folder(settings["model"], environ))
    except LaunchInvalid as error:
        problems |= error.fields
    if importlib.util.find_spec("PIL") is None:
        problems["data"] = (
            "this node needs pillow to read images. Install it there: "
            f"{sys.executable} -m pip install pillow"
        )
    else:
        problems |= _data_problems(Path(settings["data"]))
    if why := output_problem(output_folder(settings)):
        problems["output"] = why
    if problems:
        raise LaunchInvalid(problems)


def _model_problems(folder: Path) -> dict[str, str]:
    try:
        names, config = config_of(folder, reads_weights=True)
    except LaunchInvalid as error:
        return dict(error.fields)
    if PREPROCESSOR not in names:
        return {
            "model": f"{folder} has no {PREPROCESSOR}. Save the image processor beside "
            "the model: AutoImageProcessor.from_pretrained(...).save_pretrained(...)"
        }
    channels = config.get("num_channels", COLOURS)
    if channels != COLOURS:
        return {
            "model": f"the model reads images with {channels} channels. This recipe "
            f"has RGB images, with {COLOURS}"
        }
    return {}


def _data_problems(folder: Path) -> dict[str, str]:
    """Return the problems of a data set. The first images of some classes are read."""
    try:
        images = read_image_folder(folder)
        first: dict[int, Path] = {}
        for path, number in images.train:
            first.setdefault(number, path)
        for path in list(first.values())[:OPENED]:
            opened_image(path)
    except LaunchInvalid as error:
        return dict(error.fields)
    except OSError as error:
        return {"data": str(error)[:300]}
    return {}
