"""Archives made by code, honest and hostile ones; no Django."""

import io
import tarfile
import zipfile
from collections.abc import Mapping


def zipped(
    files: Mapping[str, bytes],
    folder: str = "",
    *,
    modes: Mapping[str, int] | None = None,
) -> bytes:
    """A .zip of files under a folder; ``modes``: Unix modes of some."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            info = zipfile.ZipInfo(folder + name)
            info.compress_type = zipfile.ZIP_DEFLATED
            info.external_attr = (modes or {}).get(name, 0o100644) << 16
            archive.writestr(info, data)
    return out.getvalue()


def tarred(
    files: Mapping[str, bytes],
    *,
    packed: bool = False,
    kinds: Mapping[str, bytes] | None = None,
) -> bytes:
    """A .tar of files; ``kinds``: what some of them are instead of files."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz" if packed else "w") as archive:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            info.type = (kinds or {}).get(name, tarfile.REGTYPE)
            info.linkname = "/etc/passwd"
            archive.addfile(info, io.BytesIO(data))
    return out.getvalue()
