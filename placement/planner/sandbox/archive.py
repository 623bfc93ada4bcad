"""Read a .zip or .tar in a separate process.

    python -m placement.planner.sandbox.archive FILE

It prints every regular file of the archive: a line of JSON {"name", "size"} and then as
many bytes; at the end {"end": number of files}. Exit 2: {"error", "field", "detail"} on
standard error. It writes no file and can open nothing else (jail.py). The reader checks
names and sizes again. Links, devices, holes, names outside the folder or repeated,
encrypted entries and too many files or bytes are refused. The output of an archive bomb
ends at the bound, regardless of the sizes in its headers.
"""

import codecs
import json
import stat
import sys
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, BinaryIO

from placement.planner.sandbox.jail import EXIT_REFUSED, limit, problem
from placement.planner.sandbox.model_file_reader import opened
from placement.planner.values.errors import BadInput, FileRefused
from placement.planner.values.onnx_external_data import MOST_PARTS, checked_name

MOST_BYTES = 2**30
"""Of all extracted files together."""
MOST_ENTRIES = 2 * MOST_PARTS
CHUNK_BYTES = 2**20
CPU_SECONDS = 60
ADDRESS_BYTES = 256 * 2**20
ZIP_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)

Entry = tuple[str, int, IO[bytes]]


def main(arguments: list[str]) -> int:
    """Print the files of one archive. Return 0 or EXIT_REFUSED."""
    try:
        if len(arguments) != 1:
            raise FileRefused("usage", "file", "one archive")
        archive = opened(Path(arguments[0]))
        # Zip's names include it. Nothing can be imported after the limits are set.
        codecs.lookup("cp437")
        limit(address_bytes=ADDRESS_BYTES, cpu_seconds=CPU_SECONDS, files=0)
        start = archive.file.read(4)
        archive.file.seek(0)
        entries = _of_zip if start == b"PK\x03\x04" else _of_tar
        tell(entries(archive.file), sys.stdout.buffer)
        return 0
    except BadInput as error:
        return _refuse(error.code, error.field, error.detail)
    except MemoryError:
        return _refuse("too-large", "upload", "reading it needs too much memory")
    except (
        zipfile.BadZipFile,
        tarfile.TarError,
        zlib.error,
        EOFError,
        OSError,
        NotImplementedError,
        RuntimeError,
        ValueError,
    ) as error:
        detail = f"is not a complete .zip or .tar file: {error}"[:200]
        return _refuse("unreadable", "upload", detail)


def tell(entries: Iterator[Entry], out: BinaryIO) -> None:
    """Print entries, within bounds. Raises BadInput."""
    names: set[str] = set()
    total = 0
    for name, size, file in entries:
        name = checked_name(name)
        total += size
        if name in names:
            raise FileRefused("twice", "upload", f"holds {name[:80]} twice")
        if len(names) >= MOST_PARTS:
            raise FileRefused(
                "too-many", "upload", f"holds more than {MOST_PARTS} files"
            )
        if not 0 <= total <= MOST_BYTES:
            raise FileRefused(
                "too-large", "upload", f"holds more than {MOST_BYTES:,} bytes"
            )
        names.add(name)
        out.write(json.dumps({"name": name, "size": size}).encode() + b"\n")
        left = size
        while left:
            piece = file.read(min(left, CHUNK_BYTES))
            if not piece:
                raise FileRefused("cut-off", "upload", f"{name[:80]} is cut off")
            out.write(piece)
            left -= len(piece)
    out.write(json.dumps({"end": len(names)}).encode() + b"\n")
    out.flush()


def _of_zip(file: BinaryIO) -> Iterator[Entry]:
    with zipfile.ZipFile(file) as archive:
        for count, info in enumerate(archive.infolist()):
            _check_count(count)
            mode = info.external_attr >> 16
            if info.is_dir():
                continue
            if mode and stat.S_IFMT(mode) not in (0, stat.S_IFREG):
                raise FileRefused(
                    "link", "upload", f"{info.filename[:80]} is not a file"
                )
            if info.flag_bits & 1 or info.compress_type not in ZIP_METHODS:
                detail = f"{info.filename[:80]} is encrypted, or packed in a rare way"
                raise FileRefused("packed", "upload", detail)
            with archive.open(info) as inner:
                yield info.filename, info.file_size, inner


def _of_tar(file: BinaryIO) -> Iterator[Entry]:
    packed = file.read(2) == b"\x1f\x8b"
    file.seek(0)
    with tarfile.open(fileobj=file, mode="r|gz" if packed else "r|") as archive:
        for count, info in enumerate(archive):
            _check_count(count)
            if info.isdir():
                continue
            if not info.isreg() or info.issparse():
                raise FileRefused(
                    "link", "upload", f"{info.name[:80]} is not a complete file"
                )
            inner = archive.extractfile(info)
            assert inner is not None
            yield info.name, info.size, inner


def _check_count(count: int) -> None:
    if count >= MOST_ENTRIES:
        raise FileRefused(
            "too-many", "upload", f"holds more than {MOST_ENTRIES} entries"
        )


def _refuse(code: str, field: str, detail: str) -> int:
    print(json.dumps(problem(code, field, detail)), file=sys.stderr, flush=True)
    return EXIT_REFUSED


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
