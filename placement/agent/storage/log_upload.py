"""Logs from the node to the web, whole, whenever the web is there.

By byte offset: the web says how much it has, and the node goes on from there.
Nothing is remembered but a finished upload, so an outage of either side, or a
restart, costs nothing but time.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import Protocol

from placement.agent.job_folder import JobFolder, NodeView
from placement.agent.portal_channel import (
    ChannelDown,
    ChannelRefused,
    upload_log,
)
from telemetry.protocol.back_off import BackOff

PIECE_BYTES = 2**20
LOOK_SECONDS = 0.3
BACK_OFF_SECONDS = (0.5, 1.0, 2.0, 5.0)

logger = logging.getLogger(__name__)


class Upload(Protocol):
    """The keeper's facts on one folder."""

    folder: JobFolder

    @property
    def ended(self) -> bool:
        """Whether the log is complete."""

    def report(self, **what: bool) -> None:
        """Remember the uploaded bytes."""


class Uploader:
    """Uploads one piece of each log in turn."""

    def __init__(self, node: NodeView) -> None:
        self.node = node
        self._sizes: dict[str, int] = {}
        """Bytes of each log that the web has, by its last answer."""
        self._back_off = BackOff(BACK_OFF_SECONDS)

    def run(self, stop: threading.Event, todo: Callable[[], Sequence[Upload]]) -> None:
        """Upload until `stop` is set."""
        while not stop.is_set():
            busy, pause = False, LOOK_SECONDS
            for item in todo():
                try:
                    busy = self.piece(item) or busy
                    self._back_off.succeeded()
                except ChannelDown as error:
                    pause = self._back_off.failed()
                    logger.info("uploads wait %s s: %s", pause, error)
                    break
                except (OSError, ValueError) as error:
                    logger.error("log of job %s: %s", item.folder.name, error)
            stop.wait(0 if busy and pause == LOOK_SECONDS else pause)

    def piece(self, item: Upload) -> bool:
        """Upload the next piece of one log; whether more is waiting.

        Raises:
            ChannelDown: the web cannot take it now.
        """
        folder, ended = item.folder, item.ended
        have = self._sizes.get(folder.name, 0)
        size = folder.log_bytes()
        if size <= have:
            if ended:
                item.report(uploaded=True)
                self._sizes.pop(folder.name, None)
            return False
        with folder.log.open("rb") as file:
            file.seek(have)
            data = file.read(PIECE_BYTES)
        try:
            self._sizes[folder.name] = upload_log(
                web_url=self.node.web_url,
                node=self.node.name,
                token=self.node.token(),
                job=folder.job,
                attempt=folder.attempt,
                key=folder.key,
                offset_bytes=have,
                data=data,
            )
        except ChannelRefused as refusal:
            # The web has forgotten the Job or has enough of its log.
            logger.warning("log of job %s is not wanted: %s", folder.name, refusal)
            item.report(uploaded=True)
            return False
        return folder.log_bytes() > self._sizes[folder.name]
