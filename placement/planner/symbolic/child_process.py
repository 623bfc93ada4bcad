"""Start the child that follows cases, limit it, read its events, and end it.

Imports no torch, because callers are the command line, benches and the refining worker.
The child gets a clean environment, no file of the portal except the code, and a folder
that is removed. It is ended when it takes too long, when the caller requests it, and by
the kernel when the caller dies.
"""

import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from placement.planner.symbolic.case import Case
from placement.planner.values.errors import SpecInvalid
from telemetry.protocol.coded_error import CodedError

CASE_SECONDS = 60
"""Processor time for one case. 8 billion parameters take under two."""
START_SECONDS = 60
"""Time to import torch and transformers on a busy machine."""
ADDRESS_BYTES = 4 * 2**30
"""Limit beyond the libraries' mapped bytes: modules, autograd's graph, layouts."""
POLL_SECONDS = 0.1
MOST_LINE_BYTES = 2**20
ROOT = Path(__file__).resolve().parents[3]
CHILD = "placement.planner.symbolic.child"
Listener = Callable[[int, str, float], None]


class SymbolicFailed(CodedError):
    """A case got no answer, and the case is not the known cause.

    `code`: too-slow, died, no-torch, cancelled, unsupported, failed, too-large or
    too-deep.
    """

    def __init__(self, code: str, detail: str) -> None:
        self.code = code
        self.detail = detail
        super().__init__(detail)


@dataclass(slots=True)
class ChildAnswers:
    """The answers of a child: an answer or an error for each case, in order."""

    answers: list[dict[str, Any] | CodedError] = field(default_factory=list)
    import_seconds: float = 0.0


def run(
    cases: Sequence[Case],
    *,
    listener: Listener | None = None,
    cancelled: Callable[[], bool] = lambda: False,
    seconds: float | None = None,
    cpu_seconds: int = CASE_SECONDS,
    path: str = "",
) -> ChildAnswers:
    """Follow cases one after another in one child.

    Args:
        cases: checked cases.
        listener: called with (case, current part, finished share from 0 to 1).
        cancelled: called ten times a second; True ends the run.
        seconds: wall time for all; by default by the number of cases.
        cpu_seconds: processor time for each case.
        path: folder of entry points' modules.

    Raises:
        SymbolicFailed: the child took too long, died, was cancelled, has no torch.
    """
    limit_seconds = seconds or START_SECONDS + cpu_seconds * max(1, len(cases))
    asked = {
        "cases": [case.to_json() for case in cases],
        "address_bytes": ADDRESS_BYTES,
        "cpu_seconds": cpu_seconds * max(1, len(cases)),
        "path": path,
    }
    with tempfile.TemporaryDirectory(prefix="gpuportal-symbolic-") as folder:
        child = _start(Path(folder), json.dumps(asked))
        try:
            outcome = _Listening(child, len(cases), listener, cancelled).read_events(
                time.monotonic() + limit_seconds
            )
        finally:
            _end(child)
    return outcome


def _start(folder: Path, asked: str) -> subprocess.Popen[bytes]:
    request = folder / "asked.json"
    request.write_text(asked)
    with request.open("rb") as source:
        return subprocess.Popen(
            [sys.executable, "-m", CHILD],
            cwd=ROOT,
            env=_environment(folder),
            stdin=source,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )


def _environment(folder: Path) -> dict[str, str]:
    """Return an environment without secrets, database, proxies and hub."""
    one_thread = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    return {
        "PATH": os.defpath,
        "LANG": "C.UTF-8",
        "HOME": str(folder),
        "TMPDIR": str(folder),
        "HF_HOME": str(folder),
        "PYTHONDONTWRITEBYTECODE": "1",
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "TRANSFORMERS_VERBOSITY": "error",
        **dict.fromkeys(one_thread, "1"),
    }


def _end(child: subprocess.Popen[bytes]) -> None:
    """End the child and its descendants, and reap it."""
    if child.poll() is None:
        os.killpg(child.pid, signal.SIGKILL)
    if child.stdout is not None:
        child.stdout.close()
    child.wait()


class _Listening:
    """The events of one child."""

    def __init__(
        self,
        child: subprocess.Popen[bytes],
        count: int,
        listener: Listener | None,
        cancelled: Callable[[], bool],
    ) -> None:
        self.child, self.count = child, count
        self.listener, self.cancelled = listener, cancelled
        self.outcome = ChildAnswers()
        self.rest = b""

    def read_events(self, until: float) -> ChildAnswers:
        """Read all events until the child ends. Raises SymbolicFailed."""
        assert self.child.stdout is not None
        descriptor = self.child.stdout.fileno()
        os.set_blocking(descriptor, False)
        with selectors.DefaultSelector() as ready:
            ready.register(descriptor, selectors.EVENT_READ)
            while True:
                if self.cancelled():
                    raise SymbolicFailed("cancelled", "was cancelled")
                if time.monotonic() > until:
                    detail = "took longer than it may; the closed form has an answer"
                    raise SymbolicFailed("too-slow", detail)
                if not ready.select(POLL_SECONDS):
                    continue
                piece = os.read(descriptor, 65536)
                if not piece:
                    return self._outcome_of_end()
                self._parse_events(piece)
                if len(self.outcome.answers) == self.count:
                    # Deallocating a large graph would only keep the caller waiting.
                    return self.outcome

    def _parse_events(self, piece: bytes) -> None:
        *lines, self.rest = (self.rest + piece).split(b"\n")
        if len(self.rest) > MOST_LINE_BYTES:
            raise SymbolicFailed("died", "the child said something without an end")
        for line in lines:
            event = json.loads(line)
            if "import_seconds" in event:
                self.outcome.import_seconds = event["import_seconds"]
            elif "answer" in event:
                self.outcome.answers.append(event["answer"])
            elif "problem" in event:
                self.outcome.answers.append(_error(event["problem"]))
            elif self.listener is not None:
                self.listener(event["at"], event["what"], event["share"])

    def _outcome_of_end(self) -> ChildAnswers:
        code = self.child.wait()
        if len(self.outcome.answers) == self.count and code == 0:
            return self.outcome
        if code == 3:
            raise SymbolicFailed("no-torch", "torch and transformers are not installed")
        if code in (-signal.SIGXCPU, -signal.SIGKILL):
            raise SymbolicFailed("too-slow", "needed more processor time than it may")
        if code == 97:
            detail = "the model's code tried to use the network or a process"
            raise SymbolicFailed("died", detail)
        raise SymbolicFailed("died", f"the child ended with status {code}")


def _error(told: Mapping[str, str]) -> CodedError:
    """Return a child's problem as an error."""
    code = told["code"]
    if code in ("spec-invalid", "unknown-family", "workload-invalid", "not-here"):
        return SpecInvalid({told["field"] or "model": told["detail"]})
    return SymbolicFailed(code, f"{told['field']}: {told['detail']}")
