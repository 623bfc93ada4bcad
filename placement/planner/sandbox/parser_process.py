"""Start the processes that read model files, and read their answers.

A file is parsed in a child process without the caller's environment, secrets, network
or working folder. Only the JSON that the child prints comes back, and it is checked
again. A config.json of an unknown family is built on the meta device by transformers,
in such a process too.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

from placement.planner.model.spec import ModelSpec
from placement.planner.sandbox.jail import EXIT_NETWORK
from placement.planner.values.errors import FileRefused, SpecInvalid
from telemetry.protocol.sentences import sentence

PARSE_SECONDS = 30
BUILD_SECONDS = 60
MOST_ANSWER_BYTES = 24 * 2**20
"""Limit of the parser's answer: ten times the largest known ModelSpec."""
KINDS = {".json": "json", ".safetensors": "safetensors", ".onnx": "onnx"}
READER = "placement.planner.sandbox.model_file_reader"
BUILDER = "placement.planner.sandbox.config_build"
ROOT = Path(__file__).resolve().parents[3]
"""The folder that holds the package `placement`."""
Place = Callable[[], AbstractContextManager[None]]
"""A context that is entered while a process runs, such as one of a limited number of
slots.
"""


@dataclass(frozen=True)
class ParsedModel:
    """The result of the parser."""

    spec: ModelSpec
    config: Mapping[str, Any] | None
    """The config.json, if the file was one. Symbolic estimates build it again."""


def kind_of(name: str) -> str:
    """Return the kind of a file by its suffix; JSON files are recognised by content.

    Raises:
        SpecInvalid: files with such a name cannot be read.
    """
    lower = name.lower()
    for end, kind in KINDS.items():
        if lower.endswith(end):
            return kind
    raise SpecInvalid(
        {
            "upload": sentence(
                "the name must end in .json (config.json, a safetensors index or "
                "header), .safetensors or .onnx"
            )
        }
    )


def parsed_files(
    kinds: Sequence[str],
    paths: Sequence[Path],
    *,
    name: str = "",
    parse_seconds: float = PARSE_SECONDS,
    build_seconds: float = BUILD_SECONDS,
    parser_place: Place = nullcontext,
    builder_place: Place = nullcontext,
) -> ParsedModel:
    """Run the parser's process and return its answer.

    Args:
        kinds: the kind of each file, from `kind_of`.
        paths: the files, in the same order. Several are an index and its shards.
        name: of the model; empty: the name in the file.
        parse_seconds: wall time of the parser.
        build_seconds: wall time of transformers, for a family that is not in the
            planner's table.
        parser_place: entered while the parser runs. Its errors are passed on.
        builder_place: entered while transformers runs. Its errors are passed on.

    Raises:
        SpecInvalid: the parser's own words, by field, or that it gave up.
    """
    first = str(paths[0])
    command = [READER, kinds[0], first, "config"]
    if len(paths) > 1:
        command = [READER, "set", "model", *map(str, paths)]
    try:
        try:
            with parser_place():
                answer = printed_answer(command, parse_seconds)
        except FileRefused as problem:
            if len(paths) > 1 or problem.code != "unknown-family":
                raise
            with builder_place():
                answer = printed_answer([BUILDER, first], build_seconds)
    except FileRefused as problem:
        raise SpecInvalid({problem.field: problem.detail}) from None
    config = answer.get("config")
    spec = ModelSpec.from_json(answer)
    # The parser sees a neutral file name, and people know their own.
    if name:
        spec = replace(spec, name=name)
    return ParsedModel(spec, config if isinstance(config, dict) else None)


def printed_answer(command: Sequence[str], seconds: float) -> dict[str, Any]:
    """Return the one line of JSON that a child process prints.

    Args:
        command: a module, and its arguments.
        seconds: limit of its wall time.

    Raises:
        FileRefused: with the process's report.
        SpecInvalid: it took too long or needed too much memory.
    """
    with tempfile.TemporaryFile() as output:
        done = _run(command, output, seconds)
        output.seek(0)
        text = output.read(MOST_ANSWER_BYTES + 1)
    if done.returncode == EXIT_NETWORK:
        raise SpecInvalid(
            {"upload": sentence("reading it would use the network or start a process")}
        )
    try:
        if len(text) > MOST_ANSWER_BYTES:
            raise ValueError
        answer = json.loads(text)
    except ValueError:
        raise SpecInvalid(
            {
                "upload": sentence(
                    "the file could not be read within the parser's memory"
                )
            }
        ) from None
    if done.returncode != 0 or "error" in answer:
        raise FileRefused(
            str(answer.get("error") or ""),
            str(answer.get("field") or "upload")[:80],
            str(answer.get("detail") or sentence("cannot be read"))[:400],
        )
    return dict(answer)


def _run(
    command: Sequence[str], output: IO[bytes], seconds: float
) -> subprocess.CompletedProcess[bytes]:
    try:
        return subprocess.run(
            [sys.executable, "-m", *command],
            cwd=ROOT,
            env={
                "PATH": os.defpath,
                "LANG": "C.UTF-8",
                "PYTHONDONTWRITEBYTECODE": "1",
            },
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise SpecInvalid(
            {
                "upload": sentence(
                    "reading it took more than {seconds} s", seconds=seconds
                )
            }
        ) from None
