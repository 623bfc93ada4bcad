"""The programs that start a Job's own script: its ``#!`` line, python, or a launcher.

The launchers are the user's programs, found on the Job's PATH, and never the portal's.
Options: torch 2.13 "torchrun", accelerate 1.15 "accelerate launch --help", DeepSpeed
0.19 ``deepspeed/launcher/{runner,launch}.py``.
"""

import base64
import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from placement.protocol.container_images import ContainerEngine, image_of, image_problem
from placement.protocol.rendezvous import Meeting
from telemetry.protocol.sentences import sentence

PLAN = "plan.json"
DEEPSPEED = "ds_config.json"
"""DeepSpeed's configuration with numbers, which DeepSpeed itself reads."""
TRAINER = "deepspeed.json"
"""DeepSpeed's configuration for Hugging Face's Trainer and accelerate, which fill in
each "auto".
"""
ACCELERATE = "accelerate.json"
DEVICE_MAP = "device_map.json"
ADAPTER = "adapter_config.json"
QUANTIZATION = "quantization_config.json"
SFT = "sft.yaml"
FILES = {
    PLAN: "GPUPORTAL_PLAN",
    DEEPSPEED: "GPUPORTAL_DEEPSPEED_CONFIG",
    TRAINER: "GPUPORTAL_DEEPSPEED_AUTO_CONFIG",
    ACCELERATE: "ACCELERATE_CONFIG_FILE",
    DEVICE_MAP: "GPUPORTAL_DEVICE_MAP",
    ADAPTER: "GPUPORTAL_ADAPTER_CONFIG",
    QUANTIZATION: "GPUPORTAL_QUANTIZATION_CONFIG",
    SFT: "GPUPORTAL_SFT_CONFIG",
}
"""Files of a Plan in the Job's folder -> the environment variable with the path."""
MOST_FILES_BYTES = 2**20
"""Size of the JSON text of a Plan's files, and of those beside a script."""
MOST_BESIDE = 200
"""Files that can lie beside a script."""
MOST_PATH_CHARACTERS = 200
MOST_PATH_PARTS = 8
PATH_PART = re.compile(r"\w[\w.+-]{0,99}")
"""A name in the path of a file beside a script: no dot, space or dash comes first."""
TAKEN = ("script", "results", "checkpoint")
"""The portal's own names in the folder of a script's Job."""
MOST_FOLDER_CHARACTERS = 300
CONDA_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,99}")
REQUIREMENTS = (".txt", ".in")
"""Endings of the name of a requirements file."""
MEETING_SECONDS = 600
"""Seconds for which the ranks of the first node wait for those of the others."""


class Launcher(StrEnum):
    """The program that starts the script."""

    OWN = ""
    PYTHON = "python"
    TORCHRUN = "torchrun"
    ACCELERATE = "accelerate"
    DEEPSPEED = "deepspeed"

    @property
    def label(self) -> str:
        """Return its name in forms."""
        return _LABELS[self]


_LABELS = {
    Launcher.OWN: sentence("itself: its #! line, else the shell"),
    Launcher.PYTHON: sentence("python: one process"),
    Launcher.TORCHRUN: sentence("torchrun: one process per GPU"),
    Launcher.ACCELERATE: sentence("accelerate launch: one process per GPU"),
    Launcher.DEEPSPEED: sentence("deepspeed: one process per GPU"),
}


@dataclass(frozen=True)
class LaunchPlace:
    """The facts about the place that a launcher needs."""

    gpu_uuids: Sequence[str]
    """By rank."""
    simulated: bool
    folder: str
    """The Job's folder, absolute."""
    files: Collection[str]
    """Names of those of ``FILES`` that are in it."""
    port: int
    """A free port for the rendezvous of the ranks."""
    meeting: Meeting | None = None
    """Rendezvous, if there are ranks on other nodes too."""


def script_command(
    launcher: Launcher, script: str, arguments: Sequence[str], ranks: LaunchPlace
) -> list[str]:
    """Return the argv of a script that needs a launcher. argv[0] is looked up.

    DeepSpeed's configuration is passed as ``--deepspeed_config``, the option that
    ``deepspeed.add_config_arguments`` reads, unless the arguments already name one.
    """
    count, words = len(ranks.gpu_uuids), [script, *arguments]
    if launcher is Launcher.TORCHRUN:
        where = ["--standalone"] if not ranks.meeting else static_options(ranks.meeting)
        return ["torchrun", *where, f"--nproc-per-node={count}", *words]
    if launcher is Launcher.ACCELERATE:
        return ["accelerate", "launch", *_accelerate(ranks), *words]
    if launcher is Launcher.DEEPSPEED:
        return [*_deepspeed(ranks), *words, *_deepspeed_config(ranks, arguments)]
    return ["python", *words]


def beside_problem(files: Mapping[str, str]) -> str:
    """Return why files cannot lie beside a script; "" if they can.

    Web and node both check, because the node writes the files as the Job's user.

    Args:
        files: texts by path, relative to the script's folder, with slashes.

    >>> beside_problem({"datautils.py": "", "models/net.py": ""})
    ''
    >>> beside_problem({"../train.py": ""})[:28]
    "'../train.py' cannot be sent"
    """
    if len(files) > MOST_BESIDE:
        return sentence("at most {most} files can be sent", most=MOST_BESIDE)
    for path in files:
        parts = path.split("/")
        if (
            len(path) > MOST_PATH_CHARACTERS
            or len(parts) > MOST_PATH_PARTS
            or not all(PATH_PART.fullmatch(part) for part in parts)
        ):
            return sentence(
                "{path} cannot be sent: names have letters, digits and _ . + -, and "
                "begin with a letter, a digit or _",
                path=repr(path[:MOST_PATH_CHARACTERS]),
            )
        if parts[0] in TAKEN:
            return sentence("{name} is a name that the portal uses", name=parts[0])
        above = ("/".join(parts[:end]) for end in range(1, len(parts)))
        if clash := next((one for one in above if one in files), ""):
            return sentence("{path} is a file and a folder", path=clash)
    try:
        size = len(beside_bytes(files))
    except UnicodeEncodeError:
        return sentence("must be text in UTF-8")
    if size > MOST_FILES_BYTES:
        return sentence("they are over 1 MiB: the limit for a node")
    if any("\0" in text for text in files.values()):
        return sentence("must be text, without the character NUL")
    return ""


def beside_bytes(files: Mapping[str, str]) -> bytes:
    """Return the files beside a script as JSON. Equal files have equal bytes."""
    return json.dumps(files, sort_keys=True, ensure_ascii=False).encode()


def programs(launcher: Launcher) -> tuple[str, ...]:
    """Return the names of programs that must be on the PATH."""
    if launcher is Launcher.DEEPSPEED:
        return ("python", "deepspeed")
    return (launcher.value,) if launcher else ()


def static_options(meeting: Meeting) -> list[str]:
    """Return torchrun's options for one node of several; PET_RDZV_ID names the rest."""
    return [
        f"--nnodes={len(meeting.counts)}",
        f"--node-rank={meeting.node_rank}",
        "--rdzv-backend=static",
        f"--rdzv-conf=timeout={MEETING_SECONDS}",
        f"--master-addr={meeting.address}",
        f"--master-port={meeting.port}",
    ]


def why_not_on_nodes(launcher: Launcher, counts: Sequence[int]) -> str:
    """Return why a launcher cannot start so many ranks by node; "" if it can.

    >>> why_not_on_nodes(Launcher.TORCHRUN, (2, 1))
    ''
    """
    if len(counts) < 2:
        return ""
    told = ", ".join(map(str, counts))
    if launcher is Launcher.PYTHON and max(counts) > 1:
        return sentence(
            "python starts one process on each node, and the GPUs there are {told}",
            told=told,
        )
    if launcher is Launcher.ACCELERATE and len(set(counts)) > 1:
        return sentence(
            "accelerate starts as many ranks on each node, and there are {told}",
            told=told,
        )
    return ""


def _accelerate(ranks: LaunchPlace) -> list[str]:
    count = len(ranks.gpu_uuids)
    if (meeting := ranks.meeting) is not None:
        # The file's distributed_type (FSDP, DeepSpeed) decides. --multi_gpu would
        # override it.
        known = [f"--config_file={ranks.folder}/{ACCELERATE}"]
        plain = ["--mixed_precision=no", "--dynamo_backend=no", "--multi_gpu"]
        return [
            *(known if ACCELERATE in ranks.files else plain),
            # Each node has a separate command. The default would reach the others by
            # ssh.
            "--deepspeed_multinode_launcher=standard",
            f"--num_machines={len(meeting.counts)}",
            f"--machine_rank={meeting.node_rank}",
            f"--num_processes={meeting.world}",
            "--rdzv_backend=static",
            f"--rdzv_conf=timeout={MEETING_SECONDS}",
            f"--main_process_ip={meeting.address}",
            f"--main_process_port={meeting.port}",
        ]
    several = ["--main_process_port=0"] if count > 1 else []  # 0: a free one
    if ACCELERATE in ranks.files:
        return [f"--config_file={ranks.folder}/{ACCELERATE}", *several]
    given = ["--num_machines=1", f"--num_processes={count}"]
    given += ["--mixed_precision=no", "--dynamo_backend=no"]
    # Also on simulated Gpus: with --cpu, accelerate starts several ranks only by MPI.
    return [*given, *(["--multi_gpu", *several] if count > 1 else [])]


def _deepspeed(ranks: LaunchPlace) -> list[str]:
    """Return the command of ``deepspeed``'s launcher, which starts a node's ranks.

    The program ``deepspeed`` itself only builds this command. It ignores
    CUDA_VISIBLE_DEVICES and counts from the machine's first Gpu (``--num_gpus``), which
    may belong to another person. -1 means no Gpu: the ranks of a Job on simulated Gpus
    see no real card.
    """
    gpus = ["-1" for _ in ranks.gpu_uuids] if ranks.simulated else ranks.gpu_uuids
    meeting = ranks.meeting
    counts = meeting.counts if meeting else (len(gpus),)
    own = meeting.node_rank if meeting else 0
    # It computes local ranks as rank % processes, which need not begin at 0 on a
    # further node. The Gpus are rotated so that each rank still gets its Gpu.
    turn = -meeting.first_rank % len(gpus) if meeting else 0
    # Only the number of the other nodes is needed.
    nodes = {
        "localhost" if not meeting else f"node{number}": [*gpus[turn:], *gpus[:turn]]
        if number == own
        else list(range(count))
        for number, count in enumerate(counts)
    }
    world = json.dumps(nodes).encode()
    return [
        "python",
        "-u",
        "-m",
        "deepspeed.launcher.launch",
        f"--world_info={base64.urlsafe_b64encode(world).decode()}",
        *([f"--node_rank={own}"] if meeting else []),
        f"--master_addr={meeting.address if meeting else '127.0.0.1'}",
        f"--master_port={meeting.port if meeting else ranks.port}",
    ]


def _deepspeed_config(ranks: LaunchPlace, arguments: Sequence[str]) -> list[str]:
    said = any(word.startswith("--deepspeed") for word in arguments)
    if said or DEEPSPEED not in ranks.files:
        return []
    return ["--deepspeed", "--deepspeed_config", f"{ranks.folder}/{DEEPSPEED}"]


def sent_requirements(name: str) -> str:
    """Return the path of a requirements file beside the script; "": another name.

    >>> sent_requirements("./requirements.txt"), sent_requirements("/requirements.txt")
    ('requirements.txt', '')
    """
    path = name.removeprefix("./")
    return path if path != name and path.endswith(REQUIREMENTS) else ""


def environment_problem(
    name: str, *, images: bool = False, beside: bool = False
) -> str:
    """Return why an environment cannot be named so; "" if it can.

    Its folder becomes the first entry of a PATH. With ``images`` it can also be an
    image, which a workspace runs in a container. With ``beside`` it can be a
    requirements file that is sent with the script.

    >>> environment_problem("/home/alice/venv/bin")
    ''
    >>> environment_problem("torch-2.13")
    ''
    >>> environment_problem("venv/bin")
    'must be an absolute path on the node, the name of a conda environment, or empty'
    """
    if len(name) > MOST_FOLDER_CHARACTERS or not name.isprintable():
        return sentence(
            "must be at most {most_folder_characters} printable characters",
            most_folder_characters=MOST_FOLDER_CHARACTERS,
        )
    if (image := image_of(name)) is not None:
        if not images:
            return sentence("cannot be an image here: only workspaces run in one")
        if image_problem(image) or image.engine is ContainerEngine.PODMAN:
            return image_problem(image)
    if beside and (path := sent_requirements(name)):
        return beside_problem({path: ""})
    is_conda_name = CONDA_NAME.fullmatch(name) and not name.endswith(REQUIREMENTS)
    if name and not name.startswith("/") and not is_conda_name:
        return sentence(
            "must be an absolute path on the node, the name of a conda environment, "
            "or empty"
        )
    if ":" in name:
        return sentence("cannot hold a colon: it separates the folders of a PATH")
    return ""
