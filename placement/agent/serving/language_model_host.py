"""The first process of a job that serves a language model.

``python -m placement.agent.serving.language_model_host SETTINGS``. It runs as the
student, finds the model and the server on this node, and passes the node's connections
on to the server (``placement/agent/access/program_host.py``). What is missing is said
in one line, with the command that installs it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from placement.agent.access.program_host import ProgramHost, run_program
from placement.agent.job_folder import NAME, RESULTS
from placement.agent.process.program_lookup import SYSTEM_PATH, checked_argv
from placement.agent.runtime.fine_tune_inputs import MODEL, model_folder, model_problems
from placement.planner.launch.language_model_servers import (
    AUTO,
    TEXT_SERVERS,
    TRANSFORMERS,
    VLLM,
    LanguageModelServer,
    ServedText,
    transformers_words,
    vllm_words,
    with_indices,
)
from placement.planner.values.errors import LaunchInvalid
from placement.protocol.job_lifecycle import CANNOT_START
from telemetry.protocol.codec import Malformed, decode

SOCKET_NAME = "text.sock"
LOAD_SECONDS = 1800.0
"""How long a connection waits for a model that is being loaded."""
LIST_GPUS = ("nvidia-smi", "--query-gpu=index,uuid", "--format=csv,noheader")
SMI_SECONDS = 60.0
"""How long nvidia-smi may take. It is slow where the driver is loaded for it."""
HELPER = Path(__file__).parent / "transformers_server.py"
QUIET = {
    "HF_HUB_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
}
"""Nothing is downloaded, and nothing is reported."""


class ServerMissing(Exception):
    """The environment has no such server. The text says how to install it."""


class GpusUnknown(Exception):
    """nvidia-smi does not tell the indices of the job's Gpus. The text says why."""


def served_folder(settings: Mapping[str, Any], environ: Mapping[str, str]) -> Path:
    """Return the folder of the model.

    Args:
        settings: of the recipe. ``of_job`` names the folder of a job on this node whose
            results have the model. Without one, ``model`` is a folder or the name of a
            cached model.
        environ: of the job.

    Raises:
        LaunchInvalid: it is not on this node, or no server here can read it.
    """
    if other := str(settings["of_job"]):
        found = NAME.fullmatch(other)
        if found is None:
            raise LaunchInvalid({"of_job": "names no job"})
        jobs = Path(environ["GPUPORTAL_RESULTS"]).parents[2]
        folder = jobs / other / "work" / RESULTS / MODEL
        if not folder.is_dir():
            raise LaunchInvalid(
                {
                    "of_job": f"the results of job {found[1]} are not on this node. "
                    "They stay for seven days on the node where it ran. Download them, "
                    "put them into a folder on this node and enter its path"
                }
            )
    else:
        folder = model_folder(str(settings["model"]), environ)
    if (folder / "adapter_config.json").is_file() and not _has_config(folder):
        raise LaunchInvalid(
            {
                "model": f"{folder} has adapters only. Train with lora_output=merged, "
                "which writes a whole model"
            }
        )
    longest = int(settings["context_tokens"])
    if problems := model_problems(folder, longest, reads_weights=True, trains=False):
        raise LaunchInvalid(problems)
    return folder


def _has_config(folder: Path) -> bool:
    return (folder / "config.json").is_file()


def programs_folder(environ: Mapping[str, str]) -> str:
    """Return the folder of the environment's programs.

    Without an environment it is that of the node's worker, as for other recipes.
    """
    named = environ["PATH"].removesuffix(SYSTEM_PATH).rstrip(":")
    return named or str(Path(sys.executable).parent)


def chosen_server(wanted: str, folder: str, *, on_gpus: bool) -> LanguageModelServer:
    """Return the server that an environment has.

    Args:
        wanted: the name of one, or ``auto``.
        folder: of the environment's programs.
        on_gpus: whether the job has real Gpus.

    Raises:
        ServerMissing: it is not installed.
    """
    there = [
        one for one in TEXT_SERVERS.values() if (Path(folder) / one.program).exists()
    ]
    if wanted == AUTO:
        usable = [one for one in there if on_gpus or one is not VLLM]
        if usable:
            return usable[0]
        best = VLLM if on_gpus else TRANSFORMERS
        what = "No server of language models"
    else:
        best = TEXT_SERVERS[wanted]
        if best in there:
            return best
        what = best.name
    raise ServerMissing(
        f"{what} is not installed in {folder.removesuffix('/bin')}. Install it on this "
        f"node: {folder}/python -m pip install {best.package}"
    )


def server_command(
    server: LanguageModelServer, text: ServedText, socket_path: str, folder: str
) -> list[str]:
    """Return the argv of a server.

    Raises:
        OSError: the environment's folder is not trusted, or has no Python.
    """
    if server is VLLM:
        words = vllm_words(text, socket_path)
    else:
        words = ["python", str(HELPER), socket_path, *transformers_words(text)]
    return checked_argv(words, (server.program,), folder)


def vllm_gpus(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables by which vLLM finds the job's Gpus.

    nvidia-smi is asked in the job itself. Where other Gpus are hidden from the job, it
    and CUDA count only the visible ones.

    Raises:
        GpusUnknown: nvidia-smi does not list one of the Gpus, or fails.
    """
    visible = environ.get("CUDA_VISIBLE_DEVICES", "")
    if "GPU-" not in visible:
        return {}
    try:
        listed = subprocess.run(
            LIST_GPUS, capture_output=True, text=True, timeout=SMI_SECONDS, check=True
        ).stdout
        indices = with_indices(visible, listed)
    except (OSError, subprocess.SubprocessError, LookupError) as error:
        raise GpusUnknown(f"vLLM needs the indices of the GPUs: {error}") from error
    return {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": indices}


def main(argv: Sequence[str]) -> int:
    """Serve a model: ``language_model_host SETTINGS`` with the recipe's settings."""
    try:
        settings = decode(dict[str, Any], argv[1])
        name, wanted = str(settings["name"]), str(settings["server"])
    except (IndexError, KeyError, Malformed):
        sys.stderr.write("usage: language_model_host SETTINGS\n")
        return 2
    environ = os.environ
    with tempfile.TemporaryDirectory(prefix="text-") as place:
        socket_path = str(Path(place, SOCKET_NAME))
        try:
            model = served_folder(settings, environ)
            programs = programs_folder(environ)
            on_gpus = environ.get("GPUPORTAL_SIMULATED") == "0"
            server = chosen_server(wanted, programs, on_gpus=on_gpus)
            text = ServedText(
                name=name,
                folder=str(model),
                context_tokens=int(settings["context_tokens"]),
                sequences=int(settings["sequences"]),
                precision=str(settings["precision"]),
                gpu_count=int(environ.get("GPUPORTAL_GPU_COUNT", "1")),
            )
            words = server_command(server, text, socket_path, programs)
            gpus = vllm_gpus(environ) if server is VLLM and on_gpus else {}
        except LaunchInvalid as invalid:
            sys.stderr.write(f"gpuportal: {'; '.join(invalid.fields.values())}\n")
            return CANNOT_START
        except (ServerMissing, GpusUnknown, OSError) as problem:
            sys.stderr.write(f"gpuportal: {problem}\n")
            return CANNOT_START
        Path(place, name).symlink_to(model)
        sys.stderr.write(f"gpuportal: {server.name} loads {model}\n")
        host = ProgramHost(socket_path, ready_seconds=LOAD_SECONDS)
        return run_program(words, {**environ, **QUIET, **gpus}, host, folder=place)


if __name__ == "__main__":
    sys.exit(main(sys.argv))
