"""A socket that ends with its session."""

import asyncio
import importlib
import json
from collections import Counter
from types import SimpleNamespace
from typing import Any

from channels.db import database_sync_to_async
from channels.generic.websocket import AsyncJsonWebsocketConsumer
from django.conf import settings
from django.contrib.auth import get_user
from django.contrib.sessions.backends.base import SessionBase

from reservations.models import User

NOT_JSON = 4400
SIGNED_OUT = 4401
NOT_ALLOWED = 4403
TOO_MANY = 4429
SOCKETS_PER_USER = 60
"""Per web process. A person with sixty open pages probably runs a broken script."""


def signed_in(session_key: str | None) -> tuple[User, SessionBase] | None:
    """Return the User of a session and the session, read from the store again.

    This needs a new SessionStore, because the one in the socket's scope caches what it
    read when the socket was opened. None: signed out, expired, password changed, or
    deactivated.
    """
    if not session_key:
        return None
    fresh = importlib.import_module(settings.SESSION_ENGINE).SessionStore(session_key)
    user = get_user(SimpleNamespace(session=fresh))  # type: ignore[arg-type]
    return (user, fresh) if isinstance(user, User) and user.is_active else None


def user_of_session(session_key: str | None) -> User | None:
    """Return the User of `signed_in`.

    For pages that only show. What runs code uses `door_user` of the second factors.
    """
    found = signed_in(session_key)
    return None if found is None else found[0]


class SessionConsumer(AsyncJsonWebsocketConsumer):  # type: ignore[misc]
    """A socket that ends with its session.

    Subclasses define `admit` (the groups that this User may join; None: refused). It is
    called at the start and again every `recheck_seconds`, so that a sign-out, a lost
    role or a changed setting reaches open pages. The socket is accepted before it is
    refused, because a browser receives the close code only then.
    """

    recheck_seconds = 60.0
    user: User | None = None
    joined: frozenset[str] = frozenset()
    recheck: asyncio.Task[None] | None = None
    open_sockets: Counter[int] = Counter()
    seat: int | None = None
    """The User for whom this socket is counted."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Run the consumer, and leave every group even after an error."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            await self.leave()

    def admit(self, user: User) -> frozenset[str] | None:
        """Return the groups for this User, or None to refuse (synchronous)."""
        raise NotImplementedError

    async def welcome(self) -> None:
        """Send the initial messages to a new listener. Called after joining."""

    async def connect(self) -> None:
        """Accept, authorise, join."""
        await self.accept()
        if await self.authorise() and await self.sit_down():
            self.recheck = asyncio.create_task(self.keep_checking())
            await self.welcome()

    async def sit_down(self) -> bool:
        """Count this socket for its User. Close it if there are too many."""
        assert self.user is not None
        if self.open_sockets[self.user.pk] >= SOCKETS_PER_USER:
            await self.close(code=TOO_MANY)
            return False
        self.seat = self.user.pk
        self.open_sockets[self.seat] += 1
        return True

    async def authorise(self) -> bool:
        """Check the session and call `admit`. Join and leave groups accordingly."""
        user, groups = await database_sync_to_async(self.read_user)()
        if user is None:
            await self.close(code=SIGNED_OUT)
            return False
        if groups is None:
            await self.close(code=NOT_ALLOWED)
            return False
        self.user = user
        for group in groups - self.joined:
            await self.channel_layer.group_add(group, self.channel_name)
        for group in self.joined - groups:
            await self.channel_layer.group_discard(group, self.channel_name)
        self.joined = groups
        return True

    def read_user(self) -> tuple[User | None, frozenset[str] | None]:
        """Read the User and its groups from the database."""
        session = self.scope.get("session")
        user = user_of_session(session.session_key if session else None)
        return user, (self.admit(user) if user else None)

    async def keep_checking(self) -> None:
        """Check again every `recheck_seconds` until refused or disconnected."""
        while True:
            await asyncio.sleep(self.recheck_seconds)
            if not await self.authorise():
                return

    async def disconnect(self, code: int) -> None:
        """Leave at once, before the socket itself is taken down."""
        await self.leave()

    async def leave(self) -> None:
        """Stop checking, leave every group, and uncount the socket. May be called
        twice.
        """
        if self.recheck is not None and self.recheck is not asyncio.current_task():
            self.recheck.cancel()
            # The groups must be left even after an error.
            await asyncio.gather(self.recheck, return_exceptions=True)
        joined, self.joined = self.joined, frozenset()
        for group in joined:
            await self.channel_layer.group_discard(group, self.channel_name)
        if self.seat is not None:
            self.open_sockets[self.seat] -= 1
            if not self.open_sockets[self.seat]:
                del self.open_sockets[self.seat]
            self.seat = None

    async def receive(
        self,
        text_data: str | None = None,
        bytes_data: bytes | None = None,
        **kwargs: Any,
    ) -> None:
        """Read JSON. Anything else closes the socket instead of the consumer."""
        try:
            content = json.loads(text_data or "")
        except (ValueError, RecursionError):
            await self.close(code=NOT_JSON)
            return
        await self.receive_json(content)

    async def receive_json(self, content: Any, **kwargs: Any) -> None:
        """Ignore messages from browsers, because this socket only sends."""
