"""The images in which a workspace's program can run.

An environment is an image if it is named so:

    /home/alice/torch.sif        an image file on the node, started by apptainer
    podman:docker.io/lab/torch   an image of the site's list, started by rootless podman
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

from telemetry.protocol.sentences import sentence

RECIPE = "workspace"
"""The only recipe whose program runs in an image."""
IMAGE_VARIABLE = "GPUPORTAL_IMAGE"
"""The variable with which a job's first process gets the image."""
FILE_SUFFIX = ".sif"
PODMAN_PREFIX = "podman:"
_REFERENCE = re.compile(
    r"[a-z0-9][A-Za-z0-9._-]*(?::[0-9]{1,5})?(?:/[A-Za-z0-9][A-Za-z0-9._-]*)*"
    r"(?::[A-Za-z0-9_][A-Za-z0-9._-]{0,127})?(?:@sha256:[0-9a-f]{64})?",
    re.ASCII,
)


class ContainerEngine(StrEnum):
    """The program that starts a container."""

    APPTAINER = "apptainer"
    PODMAN = "podman"


@dataclass(frozen=True, slots=True)
class ContainerImage:
    """An image and the program that starts it."""

    engine: ContainerEngine
    reference: str
    """A path on the node, or a name in a registry."""


def image_of(environment: str) -> ContainerImage | None:
    """Return the image that an environment names; None: it is another environment.

    >>> image_of("podman:docker.io/lab/torch:2.9").reference
    'docker.io/lab/torch:2.9'
    >>> image_of("/home/alice/torch.sif").engine.value
    'apptainer'
    >>> image_of("/home/alice/venv") is None
    True
    """
    if environment.startswith("/") and environment.endswith(FILE_SUFFIX):
        return ContainerImage(ContainerEngine.APPTAINER, environment)
    if environment.startswith(PODMAN_PREFIX):
        return ContainerImage(
            ContainerEngine.PODMAN, environment.removeprefix(PODMAN_PREFIX)
        )
    return None


def image_problem(image: ContainerImage) -> str:
    """Return why an image cannot be named so; "" if it can."""
    if image.engine is ContainerEngine.PODMAN and not _REFERENCE.fullmatch(
        image.reference
    ):
        return sentence("names no image: write podman:REGISTRY/NAME:TAG")
    return ""
