"""When the workspaces of this node worked last, for the rule of idle GPUs.

The node worker asks each JupyterLab through the socket of its job, as a browser's
request comes. The program is the student's, so its answer is bounded in size and time,
and decides only when their own reservation counts as idle. Messages of a browser that
only keep a page connected change nothing: Jupyter counts what kernels do. VS Code and
marimo work while they compute (``program_work.py``). TensorBoard uses no GPU.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import io
import logging
import random
import threading
import time
from collections.abc import Callable, Collection
from datetime import datetime
from typing import Annotated

from msgspec import Meta, Struct

from placement.agent.access.program_work import ProgramWork
from placement.agent.job_folder import JobFolder
from placement.agent.process import serving_socket
from placement.planner.launch.workspace_apps import CODE_SERVER, JUPYTER_LAB, MARIMO
from placement.protocol.commands import parse_order
from placement.protocol.container_images import RECIPE
from placement.protocol.node_refusals import OrderRefused
from telemetry.protocol.codec import Malformed, decode

ASK_SECONDS = 30.0
ANSWER_SECONDS = 20.0
MOST_ANSWER_BYTES = 2**20
MOST_KERNELS = 1000
MOST_ASKED = 32
"""Notebooks that are asked at once."""
ROUND_SECONDS = 40.0
"""Of one round. Notebooks that are left then are asked in a later one."""
MOST_REASON = 200
BUSY = "busy"
REQUEST = (
    b"GET /api/kernels HTTP/1.1\r\nHost: localhost\r\nAccept: application/json\r\n"
    b"Connection: close\r\n\r\n"
)

logger = logging.getLogger(__name__)


class Kernel(Struct, frozen=True):
    """One kernel, as Jupyter Server's REST API describes it."""

    execution_state: str = ""
    last_activity: str = ""
    """ISO 8601."""


Kernels = Annotated[list[Kernel], Meta(max_length=MOST_KERNELS)]


def worked_at(answer: bytes, now: float) -> float | None:
    """Return when a kernel worked last, as Unix time; None: none ever did.

    Args:
        answer: of ``/api/kernels``, with its head.
        now: the present. A kernel that is busy works now.

    Raises:
        ValueError: the answer cannot be read, or has a time before 1970 or after `now`.
    """
    try:
        found = http.client.HTTPResponse(_Received(answer))  # type: ignore[arg-type]
        found.begin()
        body = found.read()
        if found.status != http.client.OK:
            raise ValueError(f"Jupyter answers with the status {found.status}")
        kernels = decode(Kernels, body)
    except (Malformed, http.client.HTTPException, OverflowError) as error:
        raise ValueError(f"{error}") from None
    if any(one.execution_state == BUSY for one in kernels):
        return now
    return max((_unix(one.last_activity, now) for one in kernels), default=None)


def _unix(written: str, now: float) -> float:
    """Return an instant as Unix time, from 0 to `now`. Raises ValueError."""
    try:
        at = datetime.fromisoformat(written).timestamp()
    except OverflowError as error:
        raise ValueError(f"{error}") from None
    if not 0 <= at <= now:
        raise ValueError(f"{written} is before 1970 or after now")
    return at


class _Received:
    """Bytes that were received, for the parser of the standard library."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    def makefile(self, _mode: str) -> io.BytesIO:
        """Return a file with the bytes."""
        return io.BytesIO(self.data)


class KernelActivity:
    """What is known about the notebooks of one node."""

    def __init__(self) -> None:
        self._worked: dict[str, float] = {}
        self._programs = ProgramWork()
        self._silent: set[str] = set()
        """Those that did not answer. They are asked last, in a random order."""

    def worked_at(self, folder: JobFolder) -> float | None:
        """Return when a workspace worked last; None: never, or not known."""
        return self._worked.get(folder.name)

    def run(
        self, stop: threading.Event, running: Callable[[], Collection[JobFolder]]
    ) -> None:
        """Ask the notebooks among the running jobs until `stop` is set."""
        while not stop.wait(ASK_SECONDS):
            try:
                self.ask(running())
            except Exception:
                logger.exception("the notebooks were not asked; they are asked again")

    def ask(self, folders: Collection[JobFolder]) -> None:
        """Ask once. An answer that cannot be read changes nothing.

        Slow notebooks do not delay the others: those that answered before are asked
        first, and the round ends after `ROUND_SECONDS`.
        """
        notebooks = [folder for folder in folders if _is_notebook(folder)]
        editors = [folder for folder in folders if _is_editor(folder)]
        names = {folder.name for folder in (*notebooks, *editors)}
        for name in set(self._worked) - names:
            self._worked.pop(name, None)
        self._programs.forget_others(names)
        for folder in editors:
            if self._programs.works(folder):
                self._worked[folder.name] = time.time()
        self._silent &= names
        random.shuffle(notebooks)
        notebooks.sort(key=lambda folder: folder.name in self._silent)
        if notebooks:
            asyncio.run(self._ask_all(notebooks))

    async def _ask_all(self, folders: Collection[JobFolder]) -> None:
        places = asyncio.Semaphore(MOST_ASKED)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(ROUND_SECONDS):
                await asyncio.gather(*(self._ask_one(one, places) for one in folders))

    async def _ask_one(self, folder: JobFolder, places: asyncio.Semaphore) -> None:
        """Ask one notebook. An error of it does not stop the others."""
        async with places:
            try:
                at = worked_at(await _answer(folder), time.time())
            except Exception as error:
                why = f"{type(error).__name__}: {error}"[:MOST_REASON]
                logger.info("job %s: its kernels are not known: %r", folder.name, why)
                self._silent.add(folder.name)
                return
        self._silent.discard(folder.name)
        if at is not None:
            self._worked[folder.name] = at


def _is_notebook(folder: JobFolder) -> bool:
    return _program_of(folder) == JUPYTER_LAB.name


def _is_editor(folder: JobFolder) -> bool:
    return _program_of(folder) in (CODE_SERVER.name, MARIMO.name)


def _program_of(folder: JobFolder) -> str:
    """Return the name of a workspace's program; "" for other jobs."""
    try:
        order = parse_order(str(folder.read("order").get("payload", "")))
    except OrderRefused:
        return ""
    return str(order.settings.get("app", "")) if order.recipe == RECIPE else ""


async def _answer(folder: JobFolder) -> bytes:
    """Return the answer of a notebook.

    Raises:
        OSError: it cannot be reached, or does not answer in time.
        ValueError: the answer is too long.
    """
    async with asyncio.timeout(ANSWER_SECONDS):
        line = await serving_socket.connect(folder, serving_socket.WORKSPACE)
        reader, writer = await asyncio.open_unix_connection(sock=line)
        try:
            writer.write(REQUEST)
            data = bytearray()
            while piece := await reader.read(MOST_ANSWER_BYTES):
                data += piece
                if len(data) > MOST_ANSWER_BYTES:
                    raise ValueError(f"more than {MOST_ANSWER_BYTES} bytes")
            return bytes(data)
        finally:
            writer.close()
