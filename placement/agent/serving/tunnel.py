"""The node's end of the tunnel: outbound websockets, as long as something is served.

A node only ever connects outwards. While a Job of kind ``serve`` runs here two
websockets are kept to the portal's address, wherever behind it they land; calls come
down one of them and their answers go up the same one. A call names a Job; only one that
serves here just now is asked, over its own Unix socket (see
``agent/process/serving_socket.py``).

One thread of the node worker, with a separate event loop. See
docs/design/placement.md#tunnel.
"""

import asyncio
import json
import logging
import random
import threading
from collections.abc import Mapping
from typing import Any

import uvloop
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import WebSocketException

from placement.agent.job_folder import JobFolder, NodeView, job_folders
from placement.agent.portal_socket import OlderSockets, serve_until_renewal
from placement.agent.process import serving_socket
from placement.agent.serving.model_sync import ModelSync
from placement.agent.serving.server_client import NoAnswer, ServerAnswer, ask
from placement.protocol.call_refusal import CallRefused
from placement.protocol.serving_frames import (
    MOST_HEAD_BYTES,
    MOST_REQUEST_BYTES,
    PIECE_BYTES,
    Call,
    FrameInvalid,
    allowed_path,
    checked_call,
    pack,
    unpack,
)
from telemetry.protocol.back_off import BackOff
from telemetry.protocol.coded_error import PROBLEM_TYPE, problem_details

TUNNELS = 2
LOOK_SECONDS = 0.5
IDLE_SECONDS = 30.0
"""How long tunnels stay open when nothing is served any more."""
BACK_OFF_SECONDS = (0.3, 0.5, 1.0, 2.0, 5.0)
MOST_CALLS = 256
MOST_MESSAGE_BYTES = MOST_REQUEST_BYTES + MOST_HEAD_BYTES + 4
ADDRESS = "/ws/node/serve/"

logger = logging.getLogger(__name__)


class ServeTunnels:
    """Everything that serving needs on a node; ``run`` is a thread's whole life."""

    def __init__(self, node: NodeView) -> None:
        self.node = node
        self.jobs = node.node_dir / "jobs"
        self.serving: dict[str, JobFolder] = {}
        """By the name of the folder, which holds number, attempt and key."""
        self.calls: dict[str, asyncio.Task[None]] = {}
        self._attending: dict[str, asyncio.Task[None]] = {}
        self._tunnels: list[asyncio.Task[None]] = []
        self._older = OlderSockets()

    def run(self, stop: threading.Event) -> None:
        """Serve until `stop` is set. An error is logged and does not end the loop."""
        while not stop.is_set():
            try:
                with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                    runner.run(self._main(stop))
            except Exception:
                logger.exception("serving failed; it begins again")
                stop.wait(1)

    async def _main(self, stop: threading.Event) -> None:
        idle_since = loop_seconds()
        try:
            while not stop.is_set():
                await asyncio.to_thread(self._find)
                self._update_tunnels()
                if self.serving:
                    idle_since = loop_seconds()
                    self._open()
                elif loop_seconds() - idle_since > IDLE_SECONDS:
                    await self._close()
                await asyncio.sleep(LOOK_SECONDS)
        finally:
            self.serving = {}
            self._update_tunnels()
            await self._close()

    def _find(self) -> None:
        """Look which Jobs serve here now."""
        self.serving = {
            folder.name: folder
            for folder in job_folders(self.jobs)
            if serving_socket.path_of(folder).exists()
            and folder.read("status").get("event") == "started"
        }

    def _update_tunnels(self) -> None:
        for name in [name for name in self._attending if name not in self.serving]:
            self._attending.pop(name).cancel()
        for name, folder in self.serving.items():
            task = self._attending.get(name)
            if task is None or task.done():
                made = ModelSync(self.node, folder).run()
                self._attending[name] = asyncio.create_task(made)

    def _open(self) -> None:
        if not self._tunnels:
            self._tunnels = [
                asyncio.create_task(self._tunnel()) for _ in range(TUNNELS)
            ]

    async def _close(self) -> None:
        tasks = [*self._tunnels, *self.calls.values()]
        self._tunnels = []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._older.close()

    # --- one tunnel ------------------------------------------------------------------

    async def _tunnel(self) -> None:
        """Keep one websocket open, for ever."""
        back_off = BackOff(BACK_OFF_SECONDS, jitter=(0.7, 1.3), between=random.uniform)

        async def answer_calls(socket: ClientConnection) -> None:
            back_off.succeeded()
            await self._answer_calls(socket)

        while True:
            try:
                await serve_until_renewal(
                    self.node,
                    ADDRESS,
                    answer_calls,
                    most_bytes=MOST_MESSAGE_BYTES,
                    older=self._older,
                )
            except (OSError, TimeoutError, WebSocketException, ValueError) as error:
                logger.info("the tunnel is closed: %s", error)
            await asyncio.sleep(back_off.failed())

    async def _answer_calls(self, socket: ClientConnection) -> None:
        """Take calls until the websocket closes; their answers go up the same one."""
        mine: set[asyncio.Task[None]] = set()
        try:
            async for message in socket:
                try:
                    head, body = unpack(
                        message if isinstance(message, bytes) else message.encode()
                    )
                    if head["kind"] == "cancel":
                        self._cancel(str(head["call"]))
                        continue
                    call = checked_call(head, body)
                except FrameInvalid as error:
                    logger.warning("invalid message of the tunnel: %s", error)
                    continue
                task = asyncio.create_task(self._answer(socket, call))
                self.calls[call.call] = task
                mine.add(task)
                task.add_done_callback(mine.discard)
        finally:
            for task in list(mine):
                task.cancel()

    def _cancel(self, call: str) -> None:
        task = self.calls.get(call)
        if task is not None:
            task.cancel()

    async def _answer(self, socket: ClientConnection, call: Call) -> None:
        try:
            said = await self._ask_job(call)
            await _send(socket, call.call, said)
        except WebSocketException as error:
            logger.info("an answer could not be sent: %s", error)
        finally:
            self.calls.pop(call.call, None)

    def _folder_of(self, call: Call) -> JobFolder | None:
        """Return the folder of the Job that a call is for.

        After a restore two Jobs of one number can serve here: the key tells them apart.
        """
        found = [
            folder
            for folder in self.serving.values()
            if (folder.job, folder.attempt) == (call.job, call.attempt)
            and call.key in (None, folder.key)
        ]
        return found[0] if found else None

    async def _ask_job(self, call: Call) -> ServerAnswer:
        """Ask the Job that a call is for; what cannot be asked is 502 or 503."""
        folder = self._folder_of(call)
        if folder is None:
            return _refused("not-serving", "The job does not serve on its node now.")
        if call.path != "/stats" and allowed_path(call.path[1:]) != call.path:
            return _refused("not-found", "There is no such address.")
        if len(self.calls) > MOST_CALLS:
            return _refused("full", "Too many calls wait on the node.")
        try:
            return await ask(
                folder,
                call.method,
                call.path,
                headers=call.headers,
                body=call.body,
                within_seconds=call.within_seconds,
            )
        except NoAnswer as error:
            return _refused("bad-answer", f"The job's server gave {error}.")


async def _send(socket: ClientConnection, call: str, said: ServerAnswer) -> None:
    """Send an answer in pieces that the web takes."""
    head: dict[str, Any] = {
        "kind": "answer",
        "call": call,
        "status": said.status,
        "headers": _short_headers(said.headers),
    }
    for start in range(0, max(1, len(said.body)), PIECE_BYTES):
        more = start + PIECE_BYTES < len(said.body)
        piece = said.body[start : start + PIECE_BYTES]
        await socket.send(pack(head | {"more": more}, piece))


def _short_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """The first of a Job's headers, short: the web looks at four names only."""
    return {name[:60]: value[:200] for name, value in list(headers.items())[:20]}


def _refused(code: str, detail: str) -> ServerAnswer:
    error = CallRefused(code, detail)
    assert error.status is not None
    headers = {"content-type": PROBLEM_TYPE}
    return ServerAnswer(
        error.status, headers, json.dumps(problem_details(error)).encode()
    )


def loop_seconds() -> float:
    """The running loop's clock."""
    return asyncio.get_running_loop().time()
