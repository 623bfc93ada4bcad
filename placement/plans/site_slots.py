"""A bounded number of concurrent operations on the whole site, shared out fairly.

The web runs as several processes, perhaps on several machines. All of them reach the
broker, which keeps the counts:

    slots.<name>.running    sorted set: holders of slots, and the end of each lease
    slots.<name>.waiting    sorted set: waiting requests, and the end of each lease
    slots.<name>.served     sorted set: Users, and the time of each User's last slot

A holder renews its lease. The lease of a process that ended expires after
`LEASE_SECONDS`, so a crash needs no clean-up. One script decides: the next slot goes to
the User with the fewest running operations, and among those to the one served longest
ago.
"""

import asyncio
import contextlib
import secrets
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum

import redis
import redis.asyncio
from django.conf import settings

LEASE_SECONDS = 10.0
RENEW_SECONDS = 3.0
POLL_SECONDS = 0.1
"""How often a waiting request asks again, if no slot of its own process ends first."""
BROKER_SECONDS = 2.0
"""Time limit of one request to the broker."""
CONNECTIONS = 4
"""Of one event loop, for all requests."""
OUTAGES = (redis.RedisError, OSError)
UNBOUNDED = 10**6

_ENTER = """
local ticket, user = ARGV[1], ARGV[2]
local slots, running_per_user = tonumber(ARGV[3]), tonumber(ARGV[4])
local per_user, most_waiting = tonumber(ARGV[5]), tonumber(ARGV[6])
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now)
redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', now)
redis.call('ZREMRANGEBYSCORE', KEYS[3], '-inf', now - 3600000)
local function user_of(member) return string.match(member, '^(%d+)|') end
local function arrival_of(member) return string.match(member, '|(%d+)|') end

local held = redis.call('ZRANGE', KEYS[1], 0, -1)
local of_user = {}
for _, member in ipairs(held) do
  if member == ticket then return {'in', 0} end
  of_user[user_of(member)] = (of_user[user_of(member)] or 0) + 1
end

local queue = redis.call('ZRANGE', KEYS[2], 0, -1)
local known, own, others, turns = false, of_user[user] or 0, 0, {}
for _, member in ipairs(queue) do
  known = known or member == ticket
  others = others + (member == ticket and 0 or 1)
  if user_of(member) == user and member ~= ticket then own = own + 1 end
  local one = user_of(member)
  turns[one] = turns[one] or {}
  table.insert(turns[one], member)
end
if not known then
  if own >= per_user then return {'user', own} end
  turns[user] = turns[user] or {}
  table.insert(turns[user], ticket)
end

local served = {}
for one, members in pairs(turns) do
  table.sort(members, function(a, b) return arrival_of(a) < arrival_of(b) end)
  served[one] = tonumber(redis.call('ZSCORE', KEYS[3], one) or 0)
end
for _ = #held + 1, slots do
  local best = nil
  for one, members in pairs(turns) do
    local count = of_user[one] or 0
    if members[1] and count < running_per_user then
      local better = best == nil or count < (of_user[best] or 0)
      if best and count == (of_user[best] or 0) then
        better = served[one] < served[best]
        if served[one] == served[best] then
          better = arrival_of(members[1]) < arrival_of(turns[best][1])
        end
      end
      if better then best = one end
    end
  end
  if best == nil then break end
  local member = table.remove(turns[best], 1)
  of_user[best] = (of_user[best] or 0) + 1
  served[best] = now
  if member == ticket then
    redis.call('ZREM', KEYS[2], ticket)
    redis.call('ZADD', KEYS[1], now + tonumber(ARGV[8]), ticket)
    redis.call('ZADD', KEYS[3], now, user)
    return {'in', others}
  end
end
if not known and others >= most_waiting then return {'all', others} end
redis.call('ZADD', KEYS[2], now + tonumber(ARGV[7]), ticket)
return {'wait', others}
"""
_RENEW = """
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
for place = 2, #ARGV do redis.call('ZADD', KEYS[1], now + tonumber(ARGV[1]), ARGV[place]) end
return 0
"""  # noqa: E501


class SlotVerdict(StrEnum):
    """The site's answer to a ticket."""

    IN = "in"
    """It has a slot."""
    WAIT = "wait"
    USER_FULL = "user"
    """The User has the maximum of running and waiting operations."""
    ALL_FULL = "all"
    """The maximum is waiting."""


@dataclass(frozen=True)
class SlotLimits:
    """Limits of one kind of operation, for the whole site."""

    slots: int
    """Running at once."""
    running_per_user: int = UNBOUNDED
    per_user: int = UNBOUNDED
    """Running or waiting."""
    waiting: int = 0
    """Waiting."""


@dataclass(frozen=True)
class SlotTicket:
    """A request for a slot."""

    user_pk: int
    size_bytes: int = 0
    """The disk space that it needs on its machine."""
    host: str = field(default_factory=socket.gethostname)
    arrived: int = field(default_factory=time.time_ns)
    key: str = field(default_factory=lambda: secrets.token_hex(8))

    def __str__(self) -> str:
        return (
            f"{self.user_pk}|{self.arrived:020}|{self.key}|"
            f"{self.size_bytes}|{self.host}"
        )


def _keys(name: str) -> tuple[str, str, str]:
    return f"slots.{name}.running", f"slots.{name}.waiting", f"slots.{name}.served"


def _arguments(
    ticket: SlotTicket, bounds: SlotLimits, hold_seconds: float
) -> tuple[str | int, ...]:
    return (
        *(str(ticket), ticket.user_pk, bounds.slots, bounds.running_per_user),
        *(bounds.per_user, bounds.waiting),
        *(int(LEASE_SECONDS * 1000), int(hold_seconds * 1000)),
    )


class SiteSlots:
    """Slots of one kind, for the event loop of one process."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._keys = _keys(name)
        self._held: set[str] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._client: redis.asyncio.Redis | None = None
        self._renewal: asyncio.Task[None] | None = None

    async def enter(
        self, ticket: SlotTicket, bounds: SlotLimits
    ) -> tuple[SlotVerdict, int]:
        """Request a slot, or ask again.

        Returns:
            The verdict, and the number of other waiting requests (or of the User's own,
            if they have too many).

        Raises:
            OUTAGES: the broker is unreachable.
        """
        word, count = await self._broker().eval(  # type: ignore[misc]
            _ENTER, 3, *self._keys, *_arguments(ticket, bounds, LEASE_SECONDS)
        )
        verdict = SlotVerdict(word.decode())
        if verdict is SlotVerdict.IN:
            self._held.add(str(ticket))
            if self._renewal is None or self._renewal.done():
                self._renewal = asyncio.ensure_future(self._renew())
        return verdict, int(count)

    async def leave(self, ticket: SlotTicket) -> None:
        """Give a slot back, or leave the queue. An outage is no error."""
        self._held.discard(str(ticket))
        if not self._held and self._renewal is not None:
            self._renewal.cancel()
            self._renewal = None
        with contextlib.suppress(*OUTAGES):
            broker = self._broker()
            await broker.zrem(self._keys[0], str(ticket))
            await broker.zrem(self._keys[1], str(ticket))

    async def held_bytes(self, host: str) -> int:
        """Return the disk space that the holders on one machine need.

        Raises:
            OUTAGES: the broker is unreachable.
        """
        members = await self._broker().zrange(self._keys[0], 0, -1)
        told = (member.decode().split("|") for member in members)
        return sum(int(size) for *_, size, where in told if where == host)

    async def _renew(self) -> None:
        while self._held:
            await asyncio.sleep(RENEW_SECONDS)
            with contextlib.suppress(*OUTAGES):
                await self._broker().eval(  # type: ignore[misc]
                    _RENEW, 1, self._keys[0], int(LEASE_SECONDS * 1000), *self._held
                )

    def _broker(self) -> redis.asyncio.Redis:
        loop = asyncio.get_running_loop()
        if self._client is None or loop is not self._loop:
            self._loop = loop
            self._renewal = None
            self._client = redis.asyncio.Redis(
                connection_pool=redis.asyncio.BlockingConnectionPool.from_url(
                    settings.REDIS_URL,
                    max_connections=CONNECTIONS,
                    timeout=BROKER_SECONDS,
                    socket_timeout=BROKER_SECONDS,
                    socket_connect_timeout=BROKER_SECONDS,
                )
            )
        return self._client


class SlotRefused(Exception):
    """No slot was free in time, or too many wait."""


class SlotsUnknown(SlotRefused):
    """The broker is unreachable, so the running operations are unknown."""


@contextmanager
def slot_held(
    name: str,
    bounds: SlotLimits,
    *,
    wait_seconds: float,
    hold_seconds: float,
) -> Iterator[None]:
    """Wait for a slot and hold it, in a thread that may block.

    Args:
        name: the kind of operation.
        bounds: the site's bounds.
        wait_seconds: the longest wait for a slot.
        hold_seconds: the longest lease. After it the slot is free again.

    Raises:
        SlotRefused: no slot was free in time.
        SlotsUnknown: the broker is unreachable.
    """
    keys, ticket = _keys(name), SlotTicket(0)
    arguments = _arguments(ticket, bounds, hold_seconds)
    until = time.monotonic() + wait_seconds
    with redis.Redis.from_url(
        settings.REDIS_URL,
        socket_timeout=BROKER_SECONDS,
        socket_connect_timeout=BROKER_SECONDS,
    ) as client:
        try:
            while True:
                try:
                    word, _ = client.eval(_ENTER, 3, *keys, *arguments)  # type: ignore[misc]
                except OUTAGES as error:
                    raise SlotsUnknown from error
                verdict = SlotVerdict(word.decode())
                if verdict is SlotVerdict.IN:
                    break
                if verdict is not SlotVerdict.WAIT or time.monotonic() >= until:
                    raise SlotRefused
                time.sleep(POLL_SECONDS)
            yield
        finally:
            with contextlib.suppress(*OUTAGES):
                client.zrem(keys[0], str(ticket))
                client.zrem(keys[1], str(ticket))
