"""Keep the models of one serving Job equal to the web's list.

The node asks the web every two seconds for the Job's models (a short JSON). It
downloads a missing model, checks its sha256, makes it readable for the Job's Unix user
and tells the server to load it. It tells the server to unload a model that left the
list.
"""

import asyncio
import json
import logging
import os
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta, Struct

from placement.agent import portal_channel
from placement.agent.job_folder import JobFolder, NodeView
from placement.agent.process import unix_user
from placement.agent.process.unix_user import UnixIdentity
from placement.agent.serving.server_client import NoAnswer, ask
from placement.planner.values.errors import SpecInvalid
from placement.planner.values.onnx_external_data import (
    MOST_PARTS,
    OWN_NAME,
    ModelFilePart,
)
from placement.protocol.commands import Count, parse_order
from placement.protocol.rendezvous import Sha256
from placement.protocol.serving_frames import MODEL_NAME
from telemetry.protocol.codec import Malformed, decode

LOOK_SECONDS = 2.0
TELL_SECONDS = 10.0
MOST_MODELS = 32
MOST_MODEL_BYTES = 2 * 2**30
ASK_SECONDS = 10.0

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class WantedModel:
    """One model that the Job is to serve."""

    id: Count
    name: Annotated[str, Meta(pattern=rf"\A{MODEL_NAME.pattern}\Z")]
    sha256: Sha256
    memory_bytes: Count
    most_batch: Count
    deadline_ms: Count
    parts: Annotated[tuple[ModelFilePart, ...], Meta(max_length=MOST_PARTS)] = ()
    """Its files, its own first, if its weights are in other files."""

    @property
    def path(self) -> str:
        """Return its path in the folder of the Job's models."""
        return f"{self.sha256}/{OWN_NAME}" if self.parts else f"{self.sha256}.onnx"

    def __post_init__(self) -> None:
        if self.parts and self.parts[0].name != OWN_NAME:
            raise Malformed("parts", f"the first is not {OWN_NAME}")


class WantedModels(Struct, frozen=True):
    """The answer of the web: the models of one Job."""

    models: tuple[WantedModel, ...]


class ModelSync:
    """Keeps one Job's models equal to the web's list."""

    def __init__(self, node: NodeView, folder: JobFolder) -> None:
        self.node, self.folder = node, folder
        self.told: dict[str, WantedModel] = {}
        """The models that the server accepted, by name."""
        self.failed: dict[WantedModel, str] = {}
        """The models that the server could not serve, with the reason. A server that
        restarts after it died does not try them again, because that may block the Gpu
        for long.
        """
        self.identity: UnixIdentity | None = None
        self.heard: list[dict[str, Any]] = []
        """The last report on the models to the web."""
        self.heard_at = 0.0

    async def run(self) -> None:
        """Compare every two seconds, until cancelled."""
        payload = str(self.folder.read("order").get("payload", ""))
        self.identity = unix_user.identity_of(
            parse_order(payload), allow_scripts=self.node.allow_scripts
        )
        while True:
            try:
                await self.look()
            except (portal_channel.ChannelDown, portal_channel.ChannelRefused) as error:
                logger.info("models of job %s: %s", self.folder.name, error)
            except (
                *(NoAnswer, SpecInvalid, OSError),
                *(ValueError, KeyError, TypeError, AttributeError),
            ) as error:
                logger.warning("models of job %s: %r", self.folder.name, error)
            await asyncio.sleep(LOOK_SECONDS)

    async def look(self) -> None:
        """Compare the wanted models with those sent to the server, once."""
        wanted = {one.name: one for one in await asyncio.to_thread(self._wanted)}
        for name in [one for one in self.told if self.told[one] != wanted.get(one)]:
            await self._post(f"/repository/models/{name}/unload", {})
            del self.told[name]
        for name, one in wanted.items():
            if name not in self.told:
                await asyncio.to_thread(self._fetch, one)
                await self._send_to_server(one)
        self.failed = {
            one: why for one, why in self.failed.items() if one in wanted.values()
        }
        await asyncio.to_thread(self._tidy, {one.sha256 for one in wanted.values()})
        await self._report_states(wanted)

    async def _report_states(self, wanted: Mapping[str, WantedModel]) -> None:
        """Report the models' states to the web after a change, and from time to time.

        Raises NoAnswer: the server did not answer. The web then gets no report, and
        treats the silence as a failure.
        """
        said = await ask(self.folder, "GET", "/stats", within_seconds=ASK_SECONDS)
        stats = {one["name"]: one for one in json.loads(said.body)["models"]}
        for name in self.told.keys() - stats.keys():
            del self.told[name]  # the server began again: it is to take them again
        for name, one in self.told.items():
            if stats[name]["state"] == "failed":
                self.failed[one] = str(stats[name]["note"]) or "it failed before"
        states = [
            {"id": one.id, "state": stats[name]["state"], "note": stats[name]["note"]}
            for name, one in wanted.items()
            if name in stats
        ]
        now = time.monotonic()
        if states == self.heard and now - self.heard_at < TELL_SECONDS:
            return
        await asyncio.to_thread(self._put_report, {"models": states})
        self.heard, self.heard_at = states, now

    def _put_report(self, body: Mapping[str, Any]) -> None:
        portal_channel.request(
            "PUT",
            f"{self.node.web_url}/node/v1/jobs/{self.folder.job}/models",
            node=self.node.name,
            token=self.node.token(),
            body=json.dumps(body).encode(),
            key=self.folder.key,
        )

    def _wanted(self) -> list[WantedModel]:
        url = f"{self.node.web_url}/node/v1/jobs/{self.folder.job}/models"
        _, body = portal_channel.request(
            "GET",
            url,
            node=self.node.name,
            token=self.node.token(),
            key=self.folder.key,
        )
        return list(decode(WantedModels, body).models[:MOST_MODELS])

    def _fetch(self, one: WantedModel) -> None:
        """Download the files, readable only for the Job's Unix user."""
        place = self.folder.models
        _enter_only(place)
        path = place / one.path
        if path.exists():
            return
        url = f"{self.node.web_url}/node/v1/jobs/{self.folder.job}/models/{one.id}"
        if not one.parts:
            self._download(url, path, one.sha256, MOST_MODEL_BYTES)
            return
        # The model's own file comes last: if it exists, all files do.
        left = MOST_MODEL_BYTES
        for number, part in reversed(list(enumerate(one.parts))):
            there = place / one.sha256 / part.name
            for folder in reversed(list(there.relative_to(place).parents)[:-1]):
                _enter_only(place / folder)
            if not there.exists():
                self._download(f"{url}?part={number}", there, part.sha256, left)
            left -= part.size_bytes

    def _download(self, url: str, path: Path, sha256: str, most_bytes: int) -> None:
        portal_channel.download_file(
            url,
            path,
            node=self.node.name,
            token=self.node.token,
            key=self.folder.key,
            sha256=sha256,
            most_bytes=most_bytes,
        )
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            os.fchmod(handle, 0o400)
            if self.identity is not None:
                os.fchown(handle, self.identity.uid, self.identity.gid)
        finally:
            os.close(handle)

    async def _send_to_server(self, one: WantedModel) -> None:
        said = {
            "path": str(self.folder.models / one.path),
            "memory_bytes": one.memory_bytes,
            "most_batch": one.most_batch,
            "deadline_ms": one.deadline_ms,
            "failed": self.failed.get(one, ""),
        }
        await self._post(f"/repository/models/{one.name}/load", said)
        self.told[one.name] = one

    async def _post(self, path: str, body: Mapping[str, Any]) -> None:
        """Send a command to the server. Raises NoAnswer. 409: it has the model
        already.
        """
        said = await ask(
            self.folder,
            "POST",
            path,
            headers={"content-type": "application/json"},
            body=json.dumps(body).encode(),
            within_seconds=ASK_SECONDS,
        )
        if said.status not in (200, 409):
            raise NoAnswer(f"{path}: {said.status} {said.body[:200]!r}")

    def _tidy(self, kept: set[str]) -> None:
        """Remove files that are no longer served."""
        for path in self.folder.models.glob("*"):
            if path.name.removesuffix(".onnx") in kept or path.name.startswith("."):
                continue
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)


def _enter_only(folder: Path) -> None:
    """Create a folder that others may pass through, not list and not write."""
    folder.mkdir(mode=0o711, exist_ok=True)
    folder.chmod(0o711)
