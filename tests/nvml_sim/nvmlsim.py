"""Drive the simulated driver library from Python tests (standard library only).

    from tests.nvml_sim.nvmlsim import Sim

    with Sim(gpus=4, model="a100") as sim:
        sim.set("gpu 2", lost="yes")        # takes effect within 50 ms, no restart
        sim.set("gpu 0", util="93", temp="88", throttle="sw_thermal")
        sim.add("gpu 1", "proc", "pid:self mem:10GiB sm:70")
        sim.unset("gpu 2", "lost")
        subprocess.run([...], env=sim.env())   # a process that sees these Gpus

`Sim` compiles the library into a private folder on first use (about 2 s, then
cached by content), and rewrites the config file atomically on every change.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from types import TracebackType

HERE = Path(__file__).resolve().parent
SOURCE = HERE / "nvml_sim.c"
SETTLE_SECONDS = 0.08
"""Longer than the 50 ms within which the library looks at its file again."""


class NoCompiler(RuntimeError):
    """There is no C compiler on this machine; the text says what to install."""


def compiler() -> str:
    """Path of a C compiler: $CC, gcc, cc or clang. Raises NoCompiler."""
    for name in (os.environ.get("CC"), "gcc", "cc", "clang"):
        if name and (found := shutil.which(name)):
            return found
    raise NoCompiler("no C compiler (package gcc) to build the simulated driver with")


def build(*, old: bool = False) -> Path:
    """Compile the library if needed; return the folder for LD_LIBRARY_PATH.

    `old`: a driver from before the `_v2`/`_v3` calls.
    """
    tag = hashlib.sha256(SOURCE.read_bytes() + b"old" * old).hexdigest()[:12]
    name = f"nvml-sim-{os.getuid()}"
    root = Path(os.environ.get("NVML_SIM_BUILD") or Path(tempfile.gettempdir()) / name)
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    if root.stat().st_uid != os.getuid():
        raise RuntimeError(f"{root} belongs to somebody else; set NVML_SIM_BUILD")
    folder = root / tag
    library = folder / "libnvidia-ml.so.1"
    if not library.exists():
        folder.mkdir(exist_ok=True)
        half_done = folder / f".{os.getpid()}.so"
        flags = ["-O2", "-std=gnu11", "-fPIC", "-fvisibility=hidden", "-shared"]
        flags += ["-Wl,-soname,libnvidia-ml.so.1", *(["-DNVML_SIM_OLD"] if old else [])]
        subprocess.run(
            [compiler(), *flags, "-o", half_done, SOURCE, "-lpthread", "-lm"],
            check=True,
        )
        half_done.replace(library)
    return folder


class Sim:
    """A config file and the library that reads it: a driver made of text."""

    def __init__(
        self, gpus: int = 4, *, old: bool = False, text: str | None = None, **first: str
    ) -> None:
        self.library_folder = build(old=old)
        self.folder = Path(tempfile.mkdtemp(prefix="nvml-sim-"))
        self.path = self.folder / "gpus.conf"
        self._raw = text
        self._saved: dict[str, str | None] = {}
        self._lines: list[
            tuple[str, str, str]
        ] = []  # section ("" is global), key, value
        if text is None:
            self._lines.append(("", "gpus", str(gpus)))
            self._lines += [("gpu *", key, value) for key, value in first.items()]
        self.write()

    def set(self, section: str = "", /, **values: str) -> None:
        """Set keys of a section; `fail__power` is the key `fail.power`."""
        for name, value in values.items():
            key = name.replace("__", ".")
            self._lines = [x for x in self._lines if x[:2] != (section, key)]
            self._lines.append((section, key, value))
        self.write()

    def add(self, section: str, key: str, value: str) -> None:
        """Add a line beside those with the same key (`proc`, `mig_device`)."""
        self._lines.append((section, key, value))
        self.write()

    def unset(self, section: str, *keys: str) -> None:
        """Drop keys of a section, or the whole section."""
        self._lines = [
            x for x in self._lines if x[0] != section or (keys and x[1] not in keys)
        ]
        self.write()

    def rewrite(self, text: str) -> None:
        """Replace the whole config."""
        self._raw = text
        self.write()

    def write(self) -> None:
        """Write the config beside the old one, then rename."""
        body = self._raw
        if body is None:
            parts, current = [], ""
            for section, key, value in sorted(self._lines, key=lambda x: x[0] != ""):
                if section != current:
                    parts.append(f"[{section or 'global'}]")
                    current = section
                parts.append(f"{key} = {value}")
            body = "\n".join(parts) + "\n"
        half_done = self.path.with_suffix(".tmp")
        half_done.write_text(body, encoding="utf-8", errors="surrogateescape")
        half_done.replace(self.path)

    def env(self, **extra: str) -> dict[str, str]:
        """Environment of a process that shall see these Gpus."""
        env = dict(os.environ)
        before = env.get("LD_LIBRARY_PATH")
        env["LD_LIBRARY_PATH"] = f"{self.library_folder}" + (
            f":{before}" if before else ""
        )
        env["NVML_SIM_CONFIG"] = str(self.path)
        return {**env, **extra}

    def activate(self) -> Sim:
        """Make *this* process use the simulator (before its first nvmlInit).

        The dynamic loader matches an already loaded library by its soname, so
        pynvml's CDLL("libnvidia-ml.so.1") finds this one without LD_LIBRARY_PATH.
        """
        self._saved.setdefault("NVML_SIM_CONFIG", os.environ.get("NVML_SIM_CONFIG"))
        os.environ["NVML_SIM_CONFIG"] = str(self.path)
        ctypes.CDLL(
            str(self.library_folder / "libnvidia-ml.so.1"), mode=ctypes.RTLD_GLOBAL
        )
        return self

    def close(self) -> None:
        """Put the environment back and remove the config."""
        for key, value in self._saved.items():
            if value is None:
                os.environ.pop(key, None)
            else:
                os.environ[key] = value
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Sim:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
