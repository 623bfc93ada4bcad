"""Check the files of recipes that train a language model before torch is imported.

This runs as the Job's user on the node. A problem is found within a second, and it is
named by the setting that has it.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from placement.agent.job_folder import RESULTS
from placement.agent.process.job_process import SITE_CACHE
from placement.planner.launch.quantized_bases import QUANTIZED
from placement.planner.values.errors import LaunchInvalid

MODEL = "model"
"""Name of the trained model's folder in the output folder."""
MARK = "fine_tune.json"
"""A file that marks a folder that this recipe has written."""
MOST_CONFIG_BYTES = 2**24
MOST_LINE_BYTES = 2**26
_COMMIT = re.compile(r"[0-9a-f]{40}")
_LENGTHS = ("max_position_embeddings", "n_positions")
"""Names of the longest sequence in a config.json."""


def model_folder(name: str, environ: Mapping[str, str]) -> Path:
    """Return the folder of a model: the one that is named, or its cached snapshot.

    The cache has ``hub/models--OWNER--NAME/refs/main`` with the name of a folder in
    ``snapshots`` (huggingface.co/docs/huggingface_hub "Understand caching").

    Raises:
        LaunchInvalid: it is not in the user's cache, nor in that of the site.
    """
    if name.startswith("/"):
        return Path(name)
    for cache in _caches(environ):
        place = cache / "hub" / f"models--{name.replace('/', '--')}"
        try:
            commit = (place / "refs" / "main").read_text().strip()
        except (OSError, UnicodeDecodeError):
            continue
        if _COMMIT.fullmatch(commit):
            return place / "snapshots" / commit
    where = " or ".join(map(str, _caches(environ)))
    raise LaunchInvalid(
        {
            "model": f"{name} is not in the Hugging Face cache of this node ({where}). "
            f"Download it there: hf download {name}"
        }
    )


def _caches(environ: Mapping[str, str]) -> list[Path]:
    """Return the caches of the user and of the site."""
    home = environ.get("HF_HOME") or str(
        Path(environ.get("HOME", "/"), ".cache", "huggingface")
    )
    return [Path(one) for one in (home, environ.get(SITE_CACHE, "")) if one]


def output_folder(settings: Mapping[str, Any]) -> Path:
    """Return the folder that the trained model is written to."""
    return Path(settings["output"] or RESULTS, MODEL)


def check_inputs(
    settings: Mapping[str, Any],
    environ: Mapping[str, str],
    *,
    reads_weights: bool = True,
) -> None:
    """Check the model's folder, the data set, the output folder and the packages.

    Args:
        settings: of the recipe.
        environ: of the Job.
        reads_weights: the training begins with the weights in the model's folder.

    Raises:
        LaunchInvalid: every setting with a problem.
    """
    problems: dict[str, str] = {}
    try:
        folder = model_folder(settings["model"], environ)
        problems |= model_problems(folder, settings["seq"], reads_weights=reads_weights)
    except LaunchInvalid as error:
        problems |= error.fields
    problems |= _data_problems(Path(settings["data"]), settings["column"])
    if why := output_problem(output_folder(settings)):
        problems["output"] = why
    if settings.get("lora_rank") and importlib.util.find_spec("peft") is None:
        problems["lora_rank"] = (
            "this node needs peft to train adapters. Install it there: "
            f"{sys.executable} -m pip install peft==0.21.2"
        )
    form = settings.get("weights")
    if form in QUANTIZED and importlib.util.find_spec("bitsandbytes") is None:
        problems["weights"] = (
            f"this node needs bitsandbytes for weights in {form}. Install it there: "
            f"{sys.executable} -m pip install bitsandbytes==0.50.2"
        )
    if problems:
        raise LaunchInvalid(problems)


def model_problems(
    folder: Path, seq: int, *, reads_weights: bool, trains: bool = True
) -> dict[str, str]:
    """Return what is wrong with a model's folder, by setting.

    Args:
        folder: of the model.
        seq: tokens of the longest sequence.
        reads_weights: its weights are needed.
        trains: its weights are trained, so they must not be quantized.
    """
    try:
        names, config = config_of(folder, reads_weights=reads_weights, trains=trains)
    except LaunchInvalid as error:
        return dict(error.fields)
    if "tokenizer.json" not in names:
        return {
            "model": f"{folder} has no tokenizer.json. Save the tokenizer beside the "
            "model: AutoTokenizer.from_pretrained(...).save_pretrained(...)"
        }
    longest = next((config[key] for key in _LENGTHS if key in config), None)
    if isinstance(longest, int) and seq > longest:
        return {"seq": f"the model reads at most {longest} tokens, not {seq}"}
    return {}


def config_of(
    folder: Path, *, reads_weights: bool, trains: bool = True
) -> tuple[set[str], dict[str, Any]]:
    """Return the names in a model's folder, and its config.json.

    Args:
        folder: of the model.
        reads_weights: its weights are needed.
        trains: its weights are trained, so they must not be quantized.

    Raises:
        LaunchInvalid: at ``model``.
    """
    try:
        names = {path.name for path in folder.iterdir()}
        with (folder / "config.json").open("rb") as file:
            config = json.loads(file.read(MOST_CONFIG_BYTES))
    except (OSError, ValueError) as error:
        problem = unreadable(folder, error, "config.json")
        raise LaunchInvalid({"model": problem}) from error
    if not isinstance(config, dict) or not isinstance(config.get("model_type"), str):
        raise LaunchInvalid({"model": f"{folder}/config.json has no model_type"})
    if trains and "quantization_config" in config:
        raise LaunchInvalid(
            {
                "model": f"the weights in {folder} are quantized. This recipe begins "
                "with floating-point numbers: choose the model from which it was made"
            }
        )
    if reads_weights and not any(name.endswith(".safetensors") for name in names):
        raise LaunchInvalid(
            {
                "model": f"{folder} has no .safetensors file. Other formats can "
                "contain programs, and are not read. Save it once with "
                "save_pretrained(..., safe_serialization=True)"
            }
        )
    return names, config


def unreadable(path: Path, error: Exception, what: str = "") -> str:
    """Return why a file or folder of the user cannot be read."""
    if isinstance(error, PermissionError):
        return f"{path} is closed to your Unix user"
    if isinstance(error, FileNotFoundError):
        within = f"{path} has no {what}" if what and path.is_dir() else ""
        return within or f"there is no {path} on this node"
    if isinstance(error, OSError):
        return f"{path} cannot be read: {error.strerror}"
    return f"{path / what} is no JSON: {error}"[:300]


def _data_problems(path: Path, column: str) -> dict[str, str]:
    """Return the problems of a data set up to its first text."""
    try:
        if not any(text.strip() for text in texts_of(path, column)):
            return {"data": f"{path} has no text"}
    except LaunchInvalid as error:
        return dict(error.fields)
    return {}


def texts_of(path: Path, column: str) -> Iterator[str]:
    """Yield the texts of a data set: parts of a .txt file, else one for each row.

    Raises:
        LaunchInvalid: at ``data`` or ``column``, with the row.
    """
    rows = {".txt": _lines_of, ".jsonl": _json_rows, ".parquet": _parquet_rows}
    try:
        yield from rows[path.suffix](path, column)
    except UnicodeDecodeError as error:
        raise LaunchInvalid({"data": f"{path} is no UTF-8 text: {error}"}) from error
    except OSError as error:
        raise LaunchInvalid({"data": unreadable(path, error)}) from error


def _lines_of(path: Path, _column: str) -> Iterator[str]:
    with path.open(encoding="utf-8", newline="") as file:
        yield from iter(lambda: file.readline(MOST_LINE_BYTES), "")


def _json_rows(path: Path, column: str) -> Iterator[str]:
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as error:
                wrong = f"line {number} of {path} is no JSON: {error}"
                raise LaunchInvalid({"data": wrong[:300]}) from error
            if not isinstance(row, dict):
                raise LaunchInvalid({"data": f"line {number} of {path} is no object"})
            yield _text_in(row, column, f"line {number} of {path}")


def _parquet_rows(path: Path, column: str) -> Iterator[str]:
    if importlib.util.find_spec("pyarrow") is None:
        raise LaunchInvalid(
            {
                "data": "this node needs pyarrow to read .parquet files. Install it "
                f"there: {sys.executable} -m pip install pyarrow"
            }
        )
    import pyarrow
    from pyarrow import parquet

    try:
        with path.open("rb") as file:
            table = parquet.ParquetFile(file)
            there = table.schema_arrow.names
            if column not in there:
                raise _no_column(str(path), column, there)
            number = 0
            for batch in table.iter_batches(batch_size=1024, columns=[column]):
                for text in batch.column(0).to_pylist():
                    number += 1
                    yield _text_in({column: text}, column, f"row {number} of {path}")
    except pyarrow.ArrowException as error:
        wrong = f"{path} is no parquet file: {error}"
        raise LaunchInvalid({"data": wrong[:300]}) from error


def _text_in(row: Mapping[str, object], column: str, where: str) -> str:
    """Return the text of a row. Raises LaunchInvalid."""
    if column not in row:
        raise _no_column(where, column, row)
    text = row[column]
    if not isinstance(text, str):
        kind = type(text).__name__
        raise LaunchInvalid({"data": f"{column} in {where} is a {kind}, not a text"})
    return text


def _no_column(where: str, column: str, there: Iterable[str]) -> LaunchInvalid:
    names = ", ".join(sorted(there))[:200]
    return LaunchInvalid(
        {"column": f"{where} has no column {column}. Its columns: {names}"}
    )


def output_problem(folder: Path) -> str:
    """Return why the trained model cannot be written to a folder; "": it can."""
    if folder.exists() and not (folder / MARK).is_file():
        return (
            f"there is a {folder} already, and this recipe did not write it. Choose "
            "another folder, or move it away"
        )
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        return f"{folder.parent} cannot be made: {error.strerror}"
    if not os.access(folder.parent, os.W_OK | os.X_OK):
        return f"your Unix user cannot write into {folder.parent}"
    return ""
