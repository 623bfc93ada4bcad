"""The wall by a link: random, revocable, without names, and without other pages."""

import asyncio
from datetime import timedelta

import pytest
from asgiref.sync import sync_to_async
from django.test import Client
from django.utils import timezone

from gpuportal.asgi import application
from gpuportal.board import wall_links
from gpuportal.board.wall_consumer import WallConsumer
from reservations.models import AuditEntry, SitePolicy, User, WallLink
from tests.factories import make_gpu, make_membership, make_reservation, make_user
from tests.gpuportal.board.test_consumers import (
    ROSTER,
    close_code,
    detail,
    next_of,
    publish,
)
from tests.sockets import WebsocketCommunicator
from tests.telemetry.messages import process

pytestmark = pytest.mark.django_db(transaction=True)


def screen(token: str) -> WebsocketCommunicator:
    headers = [(b"origin", b"http://localhost"), (b"host", b"localhost")]
    return WebsocketCommunicator(application, f"/ws/wall/{token}/", headers=headers)


@pytest.fixture
def omar(transactional_db):
    return make_user("omar", is_staff=True, is_superuser=True)


@pytest.fixture
def held(transactional_db):
    alice = make_user("alice")
    make_membership(alice, "vision")
    now = timezone.now()
    gpu = make_gpu()
    make_reservation(alice, [gpu], now, now + timedelta(hours=1), state="active")
    return gpu


@pytest.fixture
def link(omar):
    def make(*, names: bool = False) -> tuple[WallLink, str]:
        now = timezone.now()
        return wall_links.make(label="corridor", names=names, actor=omar, now=now)

    return make


def test_only_the_operator_makes_links_and_only_their_hash_is_kept(omar, held):
    alice, client = Client(), Client()
    alice.force_login(User.objects.get(username="alice"))
    assert alice.get("/manage/walls/").status_code == 403
    client.force_login(omar)
    bad = client.post("/manage/walls/", {"act": "make", "label": ""})
    assert bad.status_code == 422
    made = client.post("/manage/walls/", {"act": "make", "label": "corridor"})
    address = made.context["fresh_link"]
    token = address.rstrip("/").rpartition("/")[2]
    assert token not in str(WallLink.objects.values().get())
    assert token not in str(list(AuditEntry.objects.values()))
    stranger = Client()
    page = stranger.get(address)
    assert page.status_code == 200
    assert "no-store" in page["Cache-Control"]
    assert b"Search" not in page.content
    # The link opens this page and no other.
    assert stranger.get("/board/minute").status_code == 302
    assert stranger.get("/").status_code == 302
    row = WallLink.objects.get()
    assert (
        client.post("/manage/walls/", {"act": "revoke", "link": row.pk}).status_code
        == 302
    )
    assert stranger.get(address).status_code == 404
    assert stranger.get(f"/wall/{'x' * 400}/").status_code == 404
    odd = client.post("/manage/walls/", {"act": "revoke", "link": "9" * 99})
    assert odd.status_code == 302


async def test_a_screen_sees_groups_and_names_only_where_allowed(link, held):
    for names in (False, True):
        _, token = await sync_to_async(link)(names=names)
        page = screen(token)
        assert await page.connect() == (True, None)
        (holder,) = (await next_of(page, "holders"))["holders"].values()
        assert holder["account"] == "Vision"
        assert holder["user"] == ("Alice" if names else None)
        assert holder["mine"] is False
        assert holder["looming"] is None
        await page.disconnect()


async def test_a_screen_gets_frames_and_no_details_whatever_it_asks(
    link, held, redis_client
):
    _, token = await sync_to_async(link)(names=True)
    page = screen(token)
    await page.connect()
    await page.send_to(text_data='{"watch":"*"}')
    await page.send_to(text_data="no JSON at all")
    await asyncio.sleep(0.3)
    publish(redis_client, details=[("node-a", detail(process(user="alice")))])
    publish(redis_client, roster=ROSTER, frame=b"frame")
    assert await next_of(page, "frame") == b"frame"
    with pytest.raises(asyncio.TimeoutError):
        await next_of(page, "detail", 0.5)


async def test_a_revoked_or_made_up_link_is_refused(link, omar, monkeypatch):
    monkeypatch.setattr(WallConsumer, "recheck_seconds", 0.2)
    page = screen("made-up")
    await page.connect()
    assert await close_code(page) == 4403
    row, token = await sync_to_async(link)()
    page = screen(token)
    await page.connect()
    await sync_to_async(wall_links.revoke)(
        link_id=row.pk, actor=omar, now=timezone.now()
    )
    assert await close_code(page) == 4403


async def test_a_link_ends_with_the_role_of_its_maker(link, omar, held, monkeypatch):
    monkeypatch.setattr(WallConsumer, "recheck_seconds", 0.2)
    _, token = await sync_to_async(link)(names=True)
    page = screen(token)
    await page.connect()
    assert (await next_of(page, "holders"))["holders"]
    await User.objects.filter(pk=omar.pk).aupdate(is_superuser=False)
    assert await close_code(page) == 4403
    assert (await sync_to_async(Client().get)(f"/wall/{token}/")).status_code == 404
    # It also leaves the list, where it could be mistaken for a working link.
    other = await sync_to_async(make_user)("ines", is_staff=True, is_superuser=True)
    client = Client()
    await sync_to_async(client.force_login)(other)
    shown = await sync_to_async(client.get)("/manage/walls/")
    assert b"corridor</th>" not in shown.content


async def test_no_link_shows_names_where_the_site_hides_them(link, held, monkeypatch):
    monkeypatch.setattr(WallConsumer, "recheck_seconds", 0.2)
    _, token = await sync_to_async(link)(names=True)
    page = screen(token)
    await page.connect()
    (holder,) = (await next_of(page, "holders"))["holders"].values()
    assert holder["user"] == "Alice"
    policy = await sync_to_async(SitePolicy.current)()
    policy.names_visible = False
    await policy.asave()
    # The screen that is open forgets them.
    (holder,) = (await next_of(page, "holders"))["holders"].values()
    assert (holder["account"], holder["user"]) == ("Vision", None)
    await page.disconnect()
