"""ONNX models to serve: read in a sandbox, stored, deleted."""

import hashlib
import os
import secrets
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from datetime import datetime
from pathlib import Path

from django.core.files.uploadedfile import UploadedFile
from django.db import transaction
from django.db.models import Count, QuerySet, Sum

from placement.jobs import model_files
from placement.jobs.nodes import result_files
from placement.models import Job, ModelFile, RegisteredModel, ResultFile
from placement.planner.model.spec import ModelSpec
from placement.planner.values.errors import SpecInvalid
from placement.planner.values.onnx_external_data import (
    MOST_PARTS,
    OWN_NAME,
    ModelFilePart,
    check_there,
    checked_name,
    from_folder_of,
    sum_of,
)
from placement.plans.model_registry import MOST_UPLOAD_BYTES, understood_served
from placement.serving.archive_files import ENDINGS, is_archive, unpack
from placement.serving.serving_refusals import FileServed, FilesFull
from reservations.models import User
from reservations.rules.errors import NotFound
from reservations.store.audit_log import audit_act
from telemetry.protocol.sentences import sentence

ENDING = ".onnx"
MOST_FILES = 20
MOST_BYTES = 4 * 2**30
"""Of all files of one person."""


def store_file(
    *,
    user: User,
    upload: UploadedFile,
    beside: Sequence[UploadedFile] = (),
    now: datetime,
) -> ModelFile:
    """Read an ONNX model in the sandbox and store it. The same bytes are stored once.

    Args:
        user: its owner.
        upload: the .onnx file, or a .zip or .tar of its folder.
        beside: the files of its weights, if it was uploaded alone.
        now: aware UTC.

    Raises:
        SpecInvalid: it is no ONNX model, or one that may not be served. By field.
        FilesFull: the person has the maximum of files.
    """
    name = Path(upload.name or "").name[:120]
    _check_uploads(name, [upload, *beside])
    _check_space(user, sum(one.size or 0 for one in (upload, *beside)))
    with _draft() as draft:
        files = _received(name, upload, beside, draft)
        model = _model_among(files)
        title = Path(name if name.lower().endswith(ENDING) else model).name
        path = files[model]
        spec, signature, needed = understood_served(
            user, path, name=title[: -len(ENDING)] or "model"
        )
        parts = _parts(files, model, needed)
        digest = sum_of(parts) if needed else parts[0].sha256
        size_bytes = sum(part.size_bytes for part in parts)
        with transaction.atomic(durable=True):
            # The lock on the person's row makes the count below exact.
            User.objects.select_for_update().get(pk=user.pk)
            same = own_files(user).filter(sha256=digest).first()
            if same is not None:
                return same
            _check_space(user, size_bytes)
            row = ModelFile.objects.create(
                owner=user,
                name=title,
                sha256=digest,
                size_bytes=size_bytes,
                parts=[part.to_json() for part in parts] if needed else [],
                signature=signature.to_json(),
                spec=_spec_row(user, title, digest, spec, now),
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
            _store_files(row, files, model, parts)
    return row


def own_results(user: User) -> QuerySet[ResultFile]:
    """Return the stored ONNX models in the results of a User's Jobs, newest first."""
    rows = ResultFile.objects.filter(
        job__owner=user, complete_at__isnull=False, dropped_at=None
    )
    return rows.filter(path__iendswith=ENDING).order_by("-pk")[:MOST_FILES]


def store_result(*, user: User, result_id: int, now: datetime) -> ModelFile:
    """Store a model from the results of the User's Job, as if it were uploaded.

    Its weights are the files beside it whose names begin with its name, as exporters
    write them (``model.onnx.data``).

    Raises:
        NotFound: no such result of this User, or its bytes are not on the portal.
        SpecInvalid, FilesFull: as ``store_file``.
    """
    row = ResultFile.objects.filter(pk=result_id, job__owner=user).first()
    if row is None or result_files.stored_file(row.job, result_id) is None:
        raise NotFound(
            what=sentence("result #{result_id} of a job of yours", result_id=result_id)
        )
    beside = ResultFile.objects.filter(
        job=row.job_id,
        attempt=row.attempt,
        path__startswith=row.path,
        complete_at__isnull=False,
        dropped_at=None,
    ).exclude(pk=row.pk)
    with ExitStack() as opened:
        files = [
            UploadedFile(
                file=opened.enter_context(result_files.path_of(one).open("rb")),
                name=Path(one.path).name,
                size=one.size_bytes,
            )
            for one in (row, *beside.order_by("path")[:MOST_PARTS])
        ]
        return store_file(user=user, upload=files[0], beside=files[1:], now=now)


def _check_uploads(name: str, uploads: Sequence[UploadedFile]) -> None:
    """Refuse uploads that cannot be a model before anything is written. Raises
    SpecInvalid.
    """
    if not name.lower().endswith(ENDING) and not is_archive(name):
        raise SpecInvalid(
            {
                "upload": sentence(
                    "the name must end in {ending}, or in {endings}",
                    ending=ENDING,
                    endings=", ".join(ENDINGS),
                )
            }
        )
    if is_archive(name) and len(uploads) > 1:
        raise SpecInvalid({"upload": sentence("an archive holds all files of a model")})
    if len(uploads) > MOST_PARTS:
        raise SpecInvalid(
            {
                "upload": sentence(
                    "{uploads} files; at most {most_parts}",
                    uploads=f"{len(uploads):,}",
                    most_parts=MOST_PARTS,
                )
            }
        )
    total = sum(one.size or 0 for one in uploads)
    if not total:
        raise SpecInvalid({"upload": sentence("{name} is empty", name=name)})
    if total > MOST_UPLOAD_BYTES:
        raise SpecInvalid(
            {
                "upload": sentence(
                    "{total} bytes; at most {most_upload}",
                    total=f"{total:,}",
                    most_upload=f"{MOST_UPLOAD_BYTES:,}",
                )
            }
        )


def _received(
    name: str, upload: UploadedFile, beside: Sequence[UploadedFile], draft: Path
) -> dict[str, Path]:
    """Return the received files by name, stored under numbers. Raises SpecInvalid."""
    if is_archive(name):
        archive = draft / "archive"
        _write(upload, archive)
        files = unpack(archive, draft)
        archive.unlink()
        return files
    found: dict[str, Path] = {}
    for index, one in enumerate((upload, *beside)):
        known = checked_name(Path(one.name or "").name[:200])
        if known in found:
            raise SpecInvalid(
                {"upload": sentence("two files are named {known}", known=known[:80])}
            )
        found[known] = draft / str(index)
        _write(one, found[known])
    return found


def _model_among(files: Mapping[str, Path]) -> str:
    """Return the name of the one model. Raises SpecInvalid."""
    models = [name for name in files if name.lower().endswith(ENDING)]
    if len(models) != 1:
        raise SpecInvalid(
            {
                "upload": sentence(
                    "holds {models} files that end in {ending}; one is wanted",
                    models=len(models),
                    ending=ENDING,
                )
            }
        )
    return models[0]


def _parts(
    files: Mapping[str, Path], model: str, needed: Mapping[str, int]
) -> list[ModelFilePart]:
    """Return the model's own file and its weight files. Raises SpecInvalid."""
    there = from_folder_of(model, list(files))
    sizes = {name: files[whole].stat().st_size for name, whole in there.items()}
    check_there(needed, sizes)
    wanted = {OWN_NAME: files[model]}
    wanted |= {name: files[there[name]] for name in sorted(needed)}
    return [
        ModelFilePart(name, _sha256(path), path.stat().st_size)
        for name, path in wanted.items()
    ]


def _store_files(
    row: ModelFile,
    files: Mapping[str, Path],
    model: str,
    parts: Sequence[ModelFilePart],
) -> None:
    """Move the files of a model to their final place."""
    if not row.parts:
        files[model].replace(model_files.path_of(row))
        return
    there = {OWN_NAME: model, **from_folder_of(model, list(files))}
    model_files.path_of(row).parent.mkdir(mode=0o700)
    for number, part in enumerate(parts):
        source = files[model if number == 0 else there[part.name]]
        source.replace(model_files.path_of(row, number))


def drop_file(*, user: User, file_id: int, now: datetime) -> None:
    """Delete a file's bytes. Its row stays for the record.

    Raises:
        NotFound: no such file of this User.
        FileServed: a live Job serves it.
    """
    with transaction.atomic(durable=True):
        row = own_files(user).select_for_update().filter(pk=file_id).first()
        if row is None:
            raise NotFound(
                what=sentence("model file #{file_id} of yours", file_id=file_id)
            )
        live = Job.objects.live().values("pk")
        rows = row.served.filter(removed_at=None, endpoint__job__in=live)
        jobs = tuple(rows.values_list("endpoint__job_id", flat=True))
        if jobs:
            raise FileServed(jobs=jobs)
        ModelFile.objects.filter(pk=row.pk).update(dropped_at=now)
        audit_act(verb="model.dropped", subject=f"model:{row.pk}", actor=user, now=now)
        transaction.on_commit(lambda: model_files.remove(row))


def own_files(user: User) -> QuerySet[ModelFile]:
    """Return the files that a User has stored, newest first."""
    return ModelFile.objects.filter(owner=user, dropped_at=None)


def _check_space(user: User, size_bytes: int) -> None:
    """Check the limit of a person's files. Raises FilesFull."""
    found = own_files(user).aggregate(files=Count("pk"), total=Sum("size_bytes"))
    files, total = found["files"], found["total"] or 0
    if files >= MOST_FILES or total + size_bytes > MOST_BYTES:
        raise FilesFull(
            files=files, size_bytes=total, most_files=MOST_FILES, most_bytes=MOST_BYTES
        )


def _spec_row(
    user: User, name: str, digest: str, spec: ModelSpec, now: datetime
) -> RegisteredModel:
    """Return the ModelSpec's row, as the plan page stores them."""
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
def _draft() -> Iterator[Path]:
    """Yield a temporary folder beside the final one."""
    path = model_files.folder() / f".draft-{secrets.token_hex(8)}"
    path.mkdir(mode=0o700)
    try:
        yield path
    finally:
        shutil.rmtree(path)


def _write(upload: UploadedFile, path: Path) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "wb") as file:
        for chunk in upload.chunks():
            file.write(chunk)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
