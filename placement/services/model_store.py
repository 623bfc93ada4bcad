"""ONNX files that people keep to serve: read in the jail, stored, deleted."""

import contextlib
import hashlib
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

from django.core.files.uploadedfile import UploadedFile
from django.db import transaction
from django.db.models import Count, Sum

from placement import model_files
from placement.domain.errors import SpecInvalid
from placement.domain.serving_refusals import FileServed, FilesFull
from placement.domain.spec import ModelSpec
from placement.models import Job, ModelFile, RegisteredModel
from placement.services.models import MOST_UPLOAD_BYTES, understood_served
from reservations.domain.errors import NotFound
from reservations.models import User
from reservations.services.auditing import audit_act

MOST_FILES = 20
MOST_BYTES = 4 * 2**30
"""Of all files of one person."""


def store_file(*, user: User, upload: UploadedFile, now: datetime) -> ModelFile:
    """Read an ONNX file in the jail and keep it; the same bytes are kept once.

    Raises:
        SpecInvalid: it is no ONNX file, or one that may not be served; by field.
        FilesFull: as many as one person may keep.
    """
    name = Path(upload.name or "").name[:120]
    size_bytes = upload.size or 0
    if not name.lower().endswith(".onnx"):
        raise SpecInvalid({"upload": "the name must end in .onnx"})
    if not 0 < size_bytes <= MOST_UPLOAD_BYTES:
        raise SpecInvalid(
            {"upload": f"{size_bytes:,} bytes; at most {MOST_UPLOAD_BYTES:,}"}
        )
    _check_space(user, size_bytes)
    with _draft(upload) as (path, digest):
        title = name[: -len(".onnx")] or "model"
        spec, signature = understood_served(user, path, name=title)
        with transaction.atomic(durable=True):
            # The row of the person is the lock: the count below is a promise.
            User.objects.select_for_update().get(pk=user.pk)
            same = _kept(user).filter(sha256=digest).first()
            if same is not None:
                return same
            _check_space(user, size_bytes)
            row = ModelFile.objects.create(
                owner=user,
                name=name,
                sha256=digest,
                size_bytes=size_bytes,
                signature=signature.to_json(),
                spec=_spec_row(user, name, digest, spec, now),
                weight_bytes=spec.stored_bytes,
                created_at=now,
            )
            audit_act(
                verb="model.stored",
                subject=f"model:{row.pk}",
                actor=user,
                now=now,
                sha256=digest,
            )
            path.replace(model_files.path_of(row))
    return row


def drop_file(*, user: User, file_id: int, now: datetime) -> None:
    """Delete a file's bytes; its row stays for the record.

    Raises:
        NotFound: no such file of this User.
        FileServed: a Job that lives serves it.
    """
    with transaction.atomic(durable=True):
        row = _kept(user).select_for_update().filter(pk=file_id).first()
        if row is None:
            raise NotFound(what=f"model file #{file_id} of yours")
        live = Job.objects.live().values("pk")
        rows = row.served.filter(removed_at=None, endpoint__job__in=live)
        jobs = tuple(rows.values_list("endpoint__job_id", flat=True))
        if jobs:
            raise FileServed(jobs=jobs)
        ModelFile.objects.filter(pk=row.pk).update(dropped_at=now)
        audit_act(verb="model.dropped", subject=f"model:{row.pk}", actor=user, now=now)
        transaction.on_commit(lambda: model_files.path_of(row).unlink(missing_ok=True))


def own_files(user: User) -> list[ModelFile]:
    """Return the files that a User keeps, newest first."""
    return list(_kept(user))


def _kept(user: User):  # type: ignore[no-untyped-def]
    return ModelFile.objects.filter(owner=user, dropped_at=None)


def _check_space(user: User, size_bytes: int) -> None:
    """Raises FilesFull."""
    found = _kept(user).aggregate(files=Count("pk"), total=Sum("size_bytes"))
    files, total = found["files"], found["total"] or 0
    if files >= MOST_FILES or total + size_bytes > MOST_BYTES:
        raise FilesFull(
            files=files, size_bytes=total, most_files=MOST_FILES, most_bytes=MOST_BYTES
        )


def _spec_row(
    user: User, name: str, digest: str, spec: ModelSpec, now: datetime
) -> RegisteredModel:
    """The ModelSpec beside it, as the plan page keeps them."""
    known = RegisteredModel.objects.filter(owner=user, sha256=digest, source="onnx")
    return known.first() or RegisteredModel.objects.create(
        owner=user,
        name=name,
        source="onnx",
        sha256=digest,
        spec=spec.to_json(),
        created_at=now,
    )


@contextmanager
def _draft(upload: UploadedFile) -> Iterator[tuple[Path, str]]:
    """Write an upload beside where it will lie; yields path and sha256."""
    path = model_files.folder() / f".draft-{secrets.token_hex(8)}.onnx"
    digest = hashlib.sha256()
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(handle, "wb") as file:
            for chunk in upload.chunks():
                digest.update(chunk)
                file.write(chunk)
        yield path, digest.hexdigest()
    finally:
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
