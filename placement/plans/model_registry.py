"""Registered models: uploaded files become a stored ModelSpec.

Files are parsed in a separate process, without our environment, secrets, network or
working folder. Only its JSON output is used, and is validated again. A config.json of
an unknown family is built on the meta device by the pinned transformers in such a
process, too.
"""

import hashlib
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from django.core.files.uploadedfile import UploadedFile
from django.db import transaction

from placement.models import RegisteredModel
from placement.planner.model.spec import ModelSpec
from placement.planner.model.well_known import well_known_spec
from placement.planner.sandbox.parser_process import (
    BUILD_SECONDS,
    PARSE_SECONDS,
    READER,
    ParsedModel,
    kind_of,
    parsed_files,
    printed_answer,
)
from placement.planner.values.entry_point import EntryPoint
from placement.planner.values.errors import FileRefused, SpecInvalid
from placement.planner.values.tensor_signature import Signature
from placement.plans.site_slots import (
    UNBOUNDED,
    SlotLimits,
    SlotRefused,
    SlotsUnknown,
    slot_held,
)
from reservations.models import User
from telemetry.protocol.sentences import sentence

MOST_UPLOAD_BYTES = 512 * 2**20
MOST_FILES = 512
MODELS_PER_USER = 200
OWN_WAIT_SECONDS = 3.0
"""For another file of the same User."""
BROKER_AWAY = sentence(
    "files cannot be read while the portal's broker is away; try again soon"
)
HOLD_SPARE_SECONDS = 10
OWN_HOLD_SECONDS = 150
"""Longer than the waits and limits of both kinds of process together."""


@dataclass(frozen=True)
class _Places:
    """The limit of processes of one kind on the site, and of waiting ones.

    Each takes a core, up to 1 GiB and the worker that waits for it.
    """

    name: str
    count: int
    most_waiting: int
    wait_seconds: float
    hold_seconds: float
    """After this time the place of an ended holder is free again."""

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Wait for a place, and hold it. Raises SpecInvalid."""
        try:
            with slot_held(
                self.name,
                SlotLimits(slots=self.count, waiting=self.most_waiting),
                wait_seconds=self.wait_seconds,
                hold_seconds=self.hold_seconds,
            ):
                yield
        except SlotsUnknown:
            raise SpecInvalid({"upload": BROKER_AWAY}) from None
        except SlotRefused:
            detail = sentence(
                "other people's files are being read now; try again in a moment"
            )
            raise SpecInvalid({"upload": detail}) from None


_parsers = _Places(
    "parsers",
    *(2, 8),
    wait_seconds=10.0,
    hold_seconds=PARSE_SECONDS + HOLD_SPARE_SECONDS,
)
"""For parsing files: a second or two each."""
_builders = _Places(
    "builders",
    *(1, 3),
    wait_seconds=20.0,
    hold_seconds=BUILD_SECONDS + HOLD_SPARE_SECONDS,
)
"""For families that only transformers knows: half a minute each. They have separate
places, so that short files need not wait for them.
"""
SOURCES = {"config.json": "config"}
"""ModelSpec.source -> RegisteredModel.source, if they differ."""


def parse_model(
    *, user: User, upload: UploadedFile | Sequence[UploadedFile], now: datetime
) -> RegisteredModel:
    """Parse uploaded files and keep their ModelSpec (not the files).

    Args:
        user: its owner, the only User who sees it.
        upload: config.json, .safetensors (or only its header, also as .json), ONNX; or
            several files: an index with all its shards' headers, or the shards.
        now: aware UTC.

    Raises:
        SpecInvalid: a file is invalid or too large; by field.
    """
    uploads = [upload] if isinstance(upload, UploadedFile) else list(upload)
    names = [Path(one.name or "").name[:120] for one in uploads]
    kinds = [kind_of(name) for name in names]
    _check_sizes(uploads)
    name = min(names, key=lambda one: (not one.endswith(".index.json"), one))
    digest = hashlib.sha256()
    with tempfile.TemporaryDirectory(prefix="gpuportal-parse-") as folder:
        paths = []
        for index, one in enumerate(uploads):
            path = Path(folder) / f"{index:03d}{Path(names[index]).suffix.lower()}"
            with path.open("wb") as file:
                for chunk in one.chunks():
                    digest.update(chunk)
                    file.write(chunk)
            paths.append(path)
        with _one_at_a_time(user):
            understood = parsed_files(
                kinds,
                paths,
                name=_title(name),
                parse_seconds=PARSE_SECONDS,
                parser_place=_parsers.taken,
                builder_place=_builders.taken,
            )
    return _register(user, name, digest.hexdigest(), understood, now)


def _title(name: str) -> str:
    """Return a model's name from its file's. "": a config.json, which may contain
    it.
    """
    for end in (".safetensors.index.json", ".safetensors", ".json", ".onnx"):
        if name.lower().endswith(end):
            name = name[: -len(end)]
            break
    return "" if name == "config" else name or "model"


def _check_sizes(uploads: Sequence[UploadedFile]) -> None:
    """Refuse too many bytes or files before anything is written.

    Raises:
        SpecInvalid: with the limit.
    """
    total = sum(one.size or 0 for one in uploads)
    if not uploads:
        raise SpecInvalid({"upload": sentence("no file came")})
    if len(uploads) > MOST_FILES:
        raise SpecInvalid(
            {
                "upload": sentence(
                    "{uploads} files; at most {most_files}",
                    uploads=f"{len(uploads):,}",
                    most_files=MOST_FILES,
                )
            }
        )
    if total > MOST_UPLOAD_BYTES:
        raise SpecInvalid(
            {
                "upload": sentence(
                    "{total} bytes; at most {most_upload}. The header of a "
                    ".safetensors file is enough",
                    total=f"{total:,}",
                    most_upload=f"{MOST_UPLOAD_BYTES:,}",
                )
            }
        )


def _register(
    user: User, name: str, digest: str, understood: ParsedModel, now: datetime
) -> RegisteredModel:
    spec = understood.spec
    source = SOURCES.get(spec.source, spec.source)[:40]
    stored = spec.to_json()
    if understood.config is not None:
        stored["config"] = dict(understood.config)
    with transaction.atomic(durable=True):
        same = RegisteredModel.objects.filter(
            owner=user, sha256=digest, source=source
        ).first()
        if same is not None:
            return same
        row = RegisteredModel.objects.create(
            owner=user,
            name=name,
            source=source,
            sha256=digest,
            spec=stored,
            created_at=now,
        )
        old = RegisteredModel.objects.filter(owner=user)[MODELS_PER_USER:]
        RegisteredModel.objects.filter(pk__in=[m.pk for m in old]).delete()
    return row


@contextmanager
def _one_at_a_time(user: User) -> Iterator[None]:
    """Read a User's files one after another. Raises SpecInvalid."""
    try:
        with slot_held(
            f"reading.{user.pk}",
            SlotLimits(slots=1, waiting=UNBOUNDED),
            wait_seconds=OWN_WAIT_SECONDS,
            hold_seconds=OWN_HOLD_SECONDS,
        ):
            yield
    except SlotsUnknown:
        raise SpecInvalid({"upload": BROKER_AWAY}) from None
    except SlotRefused:
        detail = sentence(
            "another file of yours is being read now; wait until it is done"
        )
        raise SpecInvalid({"upload": detail}) from None


def understood_served(
    user: User, path: Path, *, name: str
) -> tuple[ModelSpec, Signature, dict[str, int]]:
    """Return the spec, inputs and outputs of an ONNX file to serve, and its weight
    files.

    With each weight file comes the number of bytes that are read. A parser's process
    reads the file, one file of a User at a time.

    Raises:
        SpecInvalid: it may not be served, or it cannot be read now.
    """
    with _one_at_a_time(user):
        try:
            with _parsers.taken():
                command = [READER, "served", str(path), name]
                answer = printed_answer(command, PARSE_SECONDS)
        except FileRefused as problem:
            raise SpecInvalid({problem.field: problem.detail}) from None
    signature = Signature.from_json(answer.pop("signature", {}))
    beside = {str(one): int(size) for one, size in answer.pop("beside", {}).items()}
    return replace(ModelSpec.from_json(answer), name=name), signature, beside


def chosen_spec(*, user: User, well_known: str, model_id: int | None) -> ModelSpec:
    """Return the ModelSpec that a form chose: an upload of the User, or by name.

    Raises:
        SpecInvalid: neither exists.
    """
    if model_id is not None:
        row = RegisteredModel.objects.filter(owner=user, pk=model_id).first()
        if row is None:
            raise SpecInvalid(
                {"upload": sentence("that upload is gone: upload it again")}
            )
        return ModelSpec.from_json(row.spec)
    if ":" in well_known:
        entry = EntryPoint.read(well_known)
        raise SpecInvalid(
            {
                "model": sentence(
                    "{entry} runs code, which the portal never does: run `python -m "
                    "placement.planner.sandbox.entry_build {entry}` as a Job",
                    entry=entry,
                )
            }
        )
    return well_known_spec(well_known)
