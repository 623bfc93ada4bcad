"""Registered models: an uploaded file becomes a stored ModelSpec.

The file is parsed in a process of its own, without our environment, secrets or
working folder; only the JSON it prints comes back, and that is read again with
the same checks.
"""

import hashlib
import json
import os
import subprocess
import sys
import tempfile
import threading
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from django.conf import settings
from django.core.files.uploadedfile import UploadedFile
from django.db import transaction

from placement.domain.errors import SpecInvalid
from placement.domain.spec import ModelSpec
from placement.domain.well_known import well_known_spec
from placement.models import RegisteredModel
from reservations.models import User

MOST_UPLOAD_BYTES = 512 * 2**20
PARSE_SECONDS = 30
MODELS_PER_USER = 200
MOST_PARSERS = 2
"""At once in one web process: each takes a core, up to 1 GiB and the thread that
waits for it; more of them would keep everybody else's pages waiting."""
PARSER_WAIT_SECONDS = 3.0
_parsers = threading.BoundedSemaphore(MOST_PARSERS)
KINDS = {".json": "config", ".safetensors": "safetensors", ".onnx": "onnx"}


def kind_of(name: str) -> str:
    """Return what a file is by the end of its name.

    Raises:
        SpecInvalid: none of the kinds that can be read.
    """
    lower = name.lower()
    if lower.endswith(".safetensors.index.json"):
        return "index"
    for end, kind in KINDS.items():
        if lower.endswith(end):
            return kind
    raise SpecInvalid(
        {
            "upload": "the name must end in .json (config.json or a safetensors "
            "index), .safetensors or .onnx"
        }
    )


def parse_model(*, user: User, upload: UploadedFile, now: datetime) -> RegisteredModel:
    """Parse an uploaded file and keep its ModelSpec (not the file).

    Args:
        user: who it belongs to; nobody else sees it.
        upload: config.json, .safetensors (or only its header), an index, ONNX.
        now: aware UTC.

    Raises:
        SpecInvalid: the file is not what it says, or too large; by field.
    """
    name = Path(upload.name or "").name[:120]
    kind = kind_of(name)
    if (upload.size or 0) > MOST_UPLOAD_BYTES:
        raise SpecInvalid(
            {
                "upload": f"{upload.size:,} bytes; at most {MOST_UPLOAD_BYTES:,}. The "
                "header of a .safetensors file is enough"
            }
        )
    with tempfile.TemporaryDirectory(prefix="gpuportal-parse-") as folder:
        path = Path(folder) / f"model{Path(name).suffix.lower()}"
        digest = hashlib.sha256()
        with path.open("wb") as file:
            for chunk in upload.chunks():
                digest.update(chunk)
                file.write(chunk)
        spec = run_parser(kind, path, name=Path(name).stem)
    with transaction.atomic(durable=True):
        same = RegisteredModel.objects.filter(
            owner=user, sha256=digest.hexdigest(), source=kind
        ).first()
        if same is not None:
            return same
        row = RegisteredModel.objects.create(
            owner=user,
            name=name,
            source=kind,
            sha256=digest.hexdigest(),
            spec=spec.to_json(),
            created_at=now,
        )
        old = RegisteredModel.objects.filter(owner=user)[MODELS_PER_USER:]
        RegisteredModel.objects.filter(pk__in=[m.pk for m in old]).delete()
    return row


def run_parser(kind: str, path: Path, *, name: str) -> ModelSpec:
    """Run the parser's process and return what it understood.

    Raises:
        SpecInvalid: its own words, by field; that it gave up; that others are
            being read just now.
    """
    if not _parsers.acquire(timeout=PARSER_WAIT_SECONDS):
        raise SpecInvalid(
            {"upload": "other people's files are being read just now; try again soon"}
        )
    try:
        done = _run(kind, path)
    finally:
        _parsers.release()
    try:
        answer = json.loads(done.stdout)
    except ValueError:
        raise SpecInvalid(
            {"upload": "the file could not be read within the parser's memory"}
        ) from None
    if done.returncode != 0 or "error" in answer:
        field = str(answer.get("field") or "upload")[:80]
        raise SpecInvalid({field: str(answer.get("detail") or "cannot be read")[:400]})
    # The parser saw a neutral file name; people know theirs.
    return replace(ModelSpec.from_json(answer), name=name)


def _run(kind: str, path: Path) -> subprocess.CompletedProcess[bytes]:
    try:
        return subprocess.run(
            [sys.executable, "-m", "placement.runtime.parse", kind, str(path)],
            cwd=settings.BASE_DIR,
            env={
                "PATH": os.defpath,
                "LANG": "C.UTF-8",
                "PYTHONDONTWRITEBYTECODE": "1",
            },
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=PARSE_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise SpecInvalid(
            {"upload": f"reading it took more than {PARSE_SECONDS} s"}
        ) from None


def chosen_spec(*, user: User, well_known: str, model_id: int | None) -> ModelSpec:
    """Return the ModelSpec a form chose: one's own upload, else by name.

    Raises:
        SpecInvalid: neither is there.
    """
    if model_id is not None:
        row = RegisteredModel.objects.filter(owner=user, pk=model_id).first()
        if row is None:
            raise SpecInvalid({"upload": "that upload is gone: upload it again"})
        return ModelSpec.from_json(row.spec)
    return well_known_spec(well_known)
