"""The command that runs a workspace's program in a container, as the student.

Neither engine needs root. apptainer (https://apptainer.org/docs/user/latest) runs an
image file. podman (https://docs.podman.io, "podman-run") runs an image by its name, and
gives it GPUs by the Container Device Interface. The container stays in the control
group of the job, so the job's limits and its end hold inside it, too.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from placement.agent.process.program_lookup import SYSTEM_PATH
from placement.protocol.container_images import ContainerEngine, ContainerImage

SINGULARITY = "singularity"
"""The earlier name of apptainer, with the same options."""
CDI_FOLDERS = (Path("/etc/cdi"), Path("/var/run/cdi"))
CDI_KIND = "nvidia.com/gpu"
MOST_CDI_BYTES = 2**20
INSTALL = {
    ContainerEngine.APPTAINER: "https://apptainer.org/docs/admin/latest/installation.html",
    ContainerEngine.PODMAN: "apt-get install podman uidmap crun",
}
NOT_PASSED = frozenset(
    ("PATH", "PYTHONPATH", "OMP_NUM_THREADS", "TMPDIR", "LD_LIBRARY_PATH")
)
"""Variables that are about the node's own programs."""
NO_PROGRAM = {ContainerEngine.APPTAINER: (255,), ContainerEngine.PODMAN: (126, 127)}
"""Exit statuses that mean that the image lacks the program."""


class ContainerRefused(Exception):
    """This node cannot run the image. The text says why, and what to do."""


@dataclass(frozen=True, slots=True)
class ContainerHost:
    """The container programs and devices of a node."""

    find: Callable[[str], str | None]
    """Path of a program, or None."""
    gains_rights: bool
    """Whether a job's programs can gain rights (no_new_privs is off)."""
    root: bool
    """Whether the job runs as root, because the operator lets it."""
    cdi_text: str
    """The node's files of the Container Device Interface."""


def container_host() -> ContainerHost:
    """Return what this node has, as the calling process sees it."""
    return ContainerHost(
        find=lambda name: shutil.which(name, path=SYSTEM_PATH),
        gains_rights="NoNewPrivs:\t1" not in Path("/proc/self/status").read_text(),
        root=os.geteuid() == 0,
        cdi_text="".join(_cdi_texts()),
    )


def container_command(
    image: ContainerImage,
    words: Sequence[str],
    *,
    folders: Sequence[str],
    workdir: str,
    environ: Mapping[str, str],
    host: ContainerHost,
) -> list[str]:
    """Return the argv that runs a program in a container.

    Args:
        image: what is run.
        words: the program and its arguments.
        folders: that the container sees at their own paths.
        workdir: where the program starts.
        environ: of the job. The container gets its variables and no other GPU than
            those of CUDA_VISIBLE_DEVICES.
        host: what the node has.

    Raises:
        ContainerRefused: this node cannot run it.
    """
    for path in (
        *folders,
        image.reference if image.engine is ContainerEngine.APPTAINER else "",
    ):
        if ":" in path or "," in path:
            raise ContainerRefused(
                f"{path} cannot be shown in a container: its name has a colon or comma."
            )
    gpus = [uuid for uuid in environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if uuid]
    if image.engine is ContainerEngine.APPTAINER:
        return _apptainer(image.reference, words, folders, workdir, gpus, host)
    return _podman(image.reference, words, folders, workdir, gpus, environ, host)


def _apptainer(
    path: str,
    words: Sequence[str],
    folders: Sequence[str],
    workdir: str,
    gpus: Sequence[str],
    host: ContainerHost,
) -> list[str]:
    program = host.find(ContainerEngine.APPTAINER) or host.find(SINGULARITY)
    if program is None:
        raise _not_installed(ContainerEngine.APPTAINER)
    if not Path(path).is_file():
        raise ContainerRefused(
            f"There is no image file {path} on this node. Make it there: "
            f"apptainer pull {path} docker://REGISTRY/NAME:TAG"
        )
    # --nv shows the driver's libraries. CUDA_VISIBLE_DEVICES and the job's device
    # rules decide which GPUs can be used.
    binds = [f"--bind={folder}:{folder}" for folder in folders]
    driver = ["--nv"] if gpus else []
    return [program, "exec", *driver, *binds, f"--pwd={workdir}", path, *words]


def _podman(
    reference: str,
    words: Sequence[str],
    folders: Sequence[str],
    workdir: str,
    gpus: Sequence[str],
    environ: Mapping[str, str],
    host: ContainerHost,
) -> list[str]:
    program = host.find(ContainerEngine.PODMAN)
    if program is None:
        raise _not_installed(ContainerEngine.PODMAN)
    if not host.gains_rights:
        raise ContainerRefused(
            "podman cannot start here: it needs newuidmap, and the isolation of jobs "
            "on this node lets no program gain rights. Use an image file for apptainer."
        )
    missing = [uuid for uuid in gpus if uuid not in host.cdi_text]
    if missing:
        raise ContainerRefused(
            f"podman cannot give {', '.join(missing)} to a container here. The lab "
            "admin must run on this node: nvidia-ctk cdi generate "
            "--device-name-strategy=uuid --output=/etc/cdi/nvidia.yaml"
        )
    first, *rest = words
    own_id = [] if host.root else ["--userns=keep-id"]
    return [
        *(program, "run", "--rm", "--cgroups=disabled", *own_id),
        # As a job without a container. podman's own /dev/shm has 64 MiB only, too
        # little for loaders of data and NCCL. The output goes to the job's log only.
        *("--network=host", "--ipc=host", "--log-driver=passthrough"),
        *("--security-opt=label=disable", "--image-volume=ignore"),
        *(f"--device={CDI_KIND}={uuid}" for uuid in gpus),
        *(f"--volume={folder}:{folder}" for folder in folders),
        *(f"--env={name}" for name in sorted(environ) if name not in NOT_PASSED),
        *(f"--workdir={workdir}", f"--entrypoint={first}", reference, *rest),
    ]


def _not_installed(engine: ContainerEngine) -> ContainerRefused:
    return ContainerRefused(
        f"{engine} is not installed on this node. Ask the lab admin to install it "
        f"({INSTALL[engine]}), or name a venv, conda environment or uv project."
    )


def _cdi_texts() -> Iterator[str]:
    for folder in CDI_FOLDERS:
        for path in sorted(folder.glob("*.yaml")) + sorted(folder.glob("*.json")):
            with path.open(errors="replace") as file:
                text = file.read(MOST_CDI_BYTES)
            if CDI_KIND in text:
                yield text
