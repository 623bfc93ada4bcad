"""The hosts of workspaces: who gets in, what passes, and what is refused."""

import asyncio
import http.client
import json
import socket
from datetime import timedelta
from urllib.parse import urlsplit

import h11
import pytest
from django.utils import timezone
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from gpuportal.http.workspace_banner import SCRIPT, TAG
from gpuportal.http.workspace_door import _Exchange
from gpuportal.http.workspace_headers import COOKIE, checked_request
from placement.access import frame_lists
from placement.access.frame_lists import NODE, SEEN
from placement.models import Job, Workspace, WorkspaceEntry
from placement.protocol.stream_state import StreamPiece
from reservations.models import Allocation, CoUser
from reservations.rules.lifecycle import State
from telemetry.protocol.request_refusal import RequestRefused
from tests.factories import make_gpus, make_node, make_reservation
from tests.placement.access.stream_nodes import streams_of
from tests.placement.lab import signed_in
from tests.placement.nodes import PATIENCE_SECONDS, make_settings, until
from tests.placement.serving.kitchen import token_of
from tests.placement.workspace.programs import program_service

pytestmark = pytest.mark.django_db(transaction=True)
LABEL, OTHER = "a" * 24, "b" * 24


class Lab:
    """Alice's running workspace on a node whose program repeats what it is sent."""

    def __init__(self, url, alice, row):
        self.url, self.port = url, urlsplit(url).port
        self.held = make_reservation(alice, make_gpus(1, row), state=State.ACTIVE)
        self.row = row
        self.workspace = self.make(alice, LABEL)

    def make(self, owner, label, held=None):
        job = Job.objects.create(
            reservation=held or self.held,
            owner=owner,
            name="JupyterLab",
            kind=Job.Kind.WORKSPACE,
            recipe="workspace",
            node=self.row,
            state=Job.State.RUNNING,
            attempt=1,
        )
        return Workspace.objects.create(job=job, app="jupyter-lab", label=label)

    def host(self, label=LABEL):
        return f"w-{label}.localhost:{self.port}"

    def origin(self, label=LABEL):
        return f"http://{self.host(label)}"

    def ask(self, path="/echo", cookie="", method="GET", body=None, **more):
        """Send one request. Return (status, headers, body)."""
        host = more.pop("host", self.host())
        headers = {"Host": host} | ({"Cookie": f"{COOKIE}={cookie}"} if cookie else {})
        headers |= {name.replace("_", "-"): value for name, value in more.items()}
        with_port = http.client.HTTPConnection(
            "127.0.0.1", self.port, timeout=PATIENCE_SECONDS
        )
        with_port.request(method, path, body=body, headers=headers)
        answer = with_port.getresponse()
        data = answer.read()
        with_port.close()
        return answer.status, answer.headers, data

    def code(self, user, workspace=None, client=None):
        """Press the button. Return the address to which the portal leads."""
        pk = (workspace or self.workspace).pk
        client = client or signed_in(user)
        answer = client.post(f"/workspaces/{pk}/enter/")
        assert answer.status_code == 303, answer.status_code
        return answer["Location"]

    def enter(self, user, workspace=None, client=None):
        """Enter as a browser does. Return the cookie."""
        address = urlsplit(self.code(user, workspace, client))
        status, headers, _ = self.ask(
            f"{address.path}?{address.query}", host=address.netloc
        )
        assert status == 303 and headers["Location"] == "/lab"
        words = headers["Set-Cookie"]
        assert words.startswith(f"{COOKIE}=")
        assert words.endswith("; Path=/; Secure; HttpOnly; SameSite=Lax")
        return words.partition("=")[2].partition(";")[0]

    def socket(self, cookie, origin=None, host=None, **more):
        host = host or self.host()
        return connect(
            f"ws://{host}/api/kernels?session_id=1",
            sock=socket.create_connection(("127.0.0.1", self.port)),
            origin=origin or f"http://{host}",
            additional_headers={"Cookie": f"{COOKIE}={cookie}"},
            compression=None,
            open_timeout=PATIENCE_SECONDS,
            **more,
        )

    def raw(self, text):
        """Send bytes as they are. Return the status."""
        with socket.create_connection(("127.0.0.1", self.port)) as line:
            line.settimeout(PATIENCE_SECONDS)
            line.sendall(text.encode("latin1"))
            return int(line.recv(4096).split()[1])


@pytest.fixture
def lab(tmp_path, live_asgi, redis_client, valkey_url, alice, settings):
    """Run the node, and wait until it is connected."""
    settings.WORKSPACE_ORIGIN = f"http://*.localhost:{urlsplit(live_asgi).port}"
    row = make_node("node1")
    here = make_settings(tmp_path, redis_url=valkey_url, web_url=live_asgi)
    token_of(row, here)
    made = Lab(live_asgi, alice, row)
    with program_service() as service, streams_of(here, {"workspace": service}):
        until(lambda: redis_client.exists(NODE + "node1"), what="the node")
        made.orders = service.orders
        yield made


@pytest.mark.once
@pytest.mark.parametrize(
    ("status", "passed"), ((302, True), (600, False), (799, False))
)
def test_a_status_that_http_does_not_define_is_a_bad_answer(status, passed):
    begun = []

    class Browser:
        begun = False

        async def begin(self, code, headers):
            begun.append(code)

        async def finish(self, body=b""):
            pass

    class Program:
        async def read(self):
            return StreamPiece(b"HTTP/1.1 %d x\r\nContent-Length: 0\r\n\r\n" % status)

    host = [(b"host", b"w")]
    request = checked_request("GET", b"/", b"", host)
    exchange = _Exchange(request, host, Browser(), Program())
    exchange.http.send(h11.Request(method="GET", target="/", headers=host))
    exchange.http.send(h11.EndOfMessage())
    if passed:
        asyncio.run(exchange._pass_answer())
    else:
        with pytest.raises(RequestRefused) as refused:
            asyncio.run(exchange._pass_answer())
        assert refused.value.status == 502
    assert begun == [status] * passed


def seen(body):
    return {name: value for name, value in json.loads(body)["headers"]}


def test_a_request_reaches_the_program_without_anything_of_the_portal(lab, alice):
    cookie = lab.enter(alice)
    status, headers, body = lab.ask(
        "/echo?a=%2F&b",
        method="PUT",
        body=b"x" * 200_000,
        Origin=lab.origin(),
        Cookie=f"sessionid=s; _xsrf=theirs; {COOKIE}={cookie}; csrftoken=c",
        Authorization="Bearer gp_secret",
        Connection="x-secret-hop",
        X_Secret_Hop="1",
        X_Forwarded_For="1.2.3.4",
    )
    told = seen(body)
    assert status == 200 and json.loads(body)["size"] == 200_000
    assert told["cookie"] == "_xsrf=theirs" and told["host"] == lab.host()
    assert not {"authorization", "x-secret-hop", "x-forwarded-for"} & told.keys()
    assert headers.get_all("Set-Cookie") == ["_xsrf=mine; Path=/", "tossed=1; Path=/"]
    assert headers["Content-Security-Policy"] == "frame-ancestors 'self'"
    assert "Access-Control-Allow-Origin" not in headers
    assert "Clear-Site-Data" not in headers
    assert len(lab.ask("/large", cookie)[2]) == 3 * 2**20
    job = lab.workspace.job
    order = lab.orders[0]
    assert (order.user, order.reservation) == ("alice", lab.held.pk)
    assert order.options == {"folder": f"{job.pk}-1-{job.key}"}


def test_a_code_works_once_for_one_minute_and_one_workspace(lab, alice):
    other = lab.make(alice, OTHER)
    address = urlsplit(lab.code(alice, other))
    path = f"{address.path}?{address.query}"
    assert lab.ask(path)[0] == 404, "at another workspace"
    assert lab.ask(path, host=lab.host(OTHER), method="POST")[0] == 405
    assert lab.ask(path, host=lab.host(OTHER))[0] == 303
    assert lab.ask(path, host=lab.host(OTHER))[0] == 404, "again"
    address = urlsplit(lab.code(alice))
    WorkspaceEntry.objects.filter(cookie_hash=None).update(
        code_until=timezone.now() - timedelta(seconds=1)
    )
    assert lab.ask(f"{address.path}?{address.query}")[0] == 404, "too late"
    assert lab.ask("/.gpuportal/enter")[0] == 404
    cookie = lab.enter(alice)
    assert lab.ask(cookie=cookie)[0] == 200
    assert lab.ask(cookie=cookie, host=lab.host(OTHER))[0] == 404


def test_everybody_else_is_answered_404(lab, alice, bob, omar):
    assert lab.ask()[0] == 404
    assert lab.ask(cookie="x" * 43)[0] == 404
    cookie = lab.enter(alice)
    twice = f"{COOKIE}={cookie}; {COOKIE}={cookie}"
    assert lab.ask(Cookie=twice)[0] == 404, "one of them may be tossed"
    for user in (bob, omar):
        answer = signed_in(user).post(f"/workspaces/{lab.workspace.pk}/enter/")
        assert answer.status_code == 404
    assert (
        signed_in(bob).get(f"/reservations/{lab.held.pk}/workspaces/").status_code
        == 404
    )


def test_a_co_user_gets_in_while_it_is_shared_and_while_they_share_the_booking(
    lab, alice, bob, monkeypatch
):
    monkeypatch.setattr("placement.access.access_guard.RECHECK_SECONDS", 0.1)
    monkeypatch.setattr("gpuportal.http.workspace_door.RECHECK_SECONDS", 0.0)
    row = CoUser.objects.create(reservation=lab.held, user=bob, added_by=alice)
    pressed = signed_in(bob).post(f"/workspaces/{lab.workspace.pk}/enter/")
    assert pressed.status_code == 404, "it is not shared"
    pressed = signed_in(bob).post(
        f"/workspaces/{lab.workspace.pk}/share/", {"shared": "yes"}
    )
    assert pressed.status_code == 404
    share = f"/workspaces/{lab.workspace.pk}/share/"
    signed_in(alice).post(share, {"shared": "yes"})
    cookie = lab.enter(bob)
    assert lab.ask(cookie=cookie)[0] == 200 and lab.orders[-1].user == "bob"
    with lab.socket(cookie) as line:
        signed_in(alice).post(share, {"shared": "no"})
        with pytest.raises(ConnectionClosed) as closed:
            line.recv(PATIENCE_SECONDS)
        assert closed.value.rcvd.code == 4410
    assert lab.ask(cookie=cookie)[0] == 404
    signed_in(alice).post(share, {"shared": "yes"})
    assert lab.ask(cookie=cookie)[0] == 200
    CoUser.objects.filter(pk=row.pk).update(removed_at=timezone.now())
    assert lab.ask(cookie=cookie)[0] == 404


def test_it_ends_with_the_reservation_the_job_and_the_session(lab, alice, monkeypatch):
    monkeypatch.setattr("placement.access.access_guard.RECHECK_SECONDS", 0.1)
    monkeypatch.setattr("gpuportal.http.workspace_door.RECHECK_SECONDS", 0.0)
    client = signed_in(alice)
    cookie, kept = lab.enter(alice, client=client), lab.enter(alice)
    client.post("/logout/")
    assert lab.ask(cookie=cookie)[0] == 404
    assert lab.ask(cookie=kept)[0] == 200
    other = lab.make(alice, OTHER)
    theirs = {"cookie": lab.enter(alice, other), "host": lab.host(OTHER)}
    assert lab.ask(**theirs)[0] == 200
    signed_in(alice).post(f"/workspaces/{other.pk}/stop/")
    assert lab.ask(**theirs)[0] == 410
    Job.objects.filter(pk=other.job_id).update(state=Job.State.STOPPED)
    status, _, body = lab.ask(**theirs)
    assert status == 410 and b"The workspace has ended." in body
    running = http.client.HTTPConnection("127.0.0.1", lab.port, timeout=90)
    shown = {"Host": lab.host(), "Cookie": f"{COOKIE}={kept}"}
    running.request("GET", "/endless", headers=shown)
    answer = running.getresponse()
    assert answer.read(5) == b"begun"
    with lab.socket(kept) as line:
        Allocation.objects.filter(reservation=lab.held).update(end=timezone.now())
        with pytest.raises(ConnectionClosed) as closed:
            line.recv(PATIENCE_SECONDS)
        assert closed.value.rcvd.code == 4410
    with pytest.raises(http.client.IncompleteRead):
        answer.read()
    running.close()
    assert lab.ask(cookie=kept)[0] == 410
    assert client.post(f"/workspaces/{lab.workspace.pk}/enter/").status_code != 303


def test_websockets_keep_their_subprotocol_and_refuse_other_origins(lab, alice):
    cookie = lab.enter(alice)
    wanted = ["v1.kernel.websocket.jupyter.org", "other"]
    with lab.socket(cookie, subprotocols=wanted) as line:
        assert line.subprotocol == "other"
        line.send("words")
        line.send(b"\x00" * 60_000)
        assert line.recv(PATIENCE_SECONDS) == "words"
        assert line.recv(PATIENCE_SECONDS) == b"\x00" * 60_000
        line.send("close")
        with pytest.raises(ConnectionClosed) as closed:
            line.recv(PATIENCE_SECONDS)
        assert closed.value.rcvd.code == 4001

    def status(*words, **named):
        with pytest.raises(InvalidStatus) as refused:
            lab.socket(*words, **named)
        return refused.value.response.status_code

    assert status(cookie, origin=lab.origin(OTHER)) == 403
    assert status(cookie, origin=lab.url) == 403
    assert status(cookie, origin=lab.origin().replace("http", "https")) == 403
    assert status("wrong") == 403
    assert status(cookie, host=lab.host(OTHER)) == 403


@pytest.mark.once
def test_a_restart_of_the_portal_closes_sockets_and_keeps_the_visit(
    lab, live_web, redis_client, alice, monkeypatch
):
    """The page connects again, and the program and its kernels have not noticed."""
    for name in ("RETURN_SECONDS", "SEEN_SECONDS"):
        monkeypatch.setattr(frame_lists, name, 600)
    cookie = lab.enter(alice)
    redis_client.set(SEEN + "node1", "1")
    with lab.socket(cookie, subprotocols=["v1"]) as line:
        live_web.stop()
        with pytest.raises(ConnectionClosed) as closed:
            line.recv(PATIENCE_SECONDS)
        assert closed.value.rcvd.code == 1012
    assert not redis_client.exists(NODE + "node1")
    live_web.start()
    # The node is not back yet. The request waits, because JupyterLab answers an error
    # with a dialog.
    assert lab.ask(cookie=cookie)[0] == 200
    with lab.socket(cookie, subprotocols=["v1"]) as line:
        line.send("after")
        assert line.recv(PATIENCE_SECONDS) == "after"


def test_pages_of_other_origins_can_only_link_here(lab, alice):
    cookie = lab.enter(alice)

    def status(method="GET", **headers):
        named = {f"Sec_Fetch_{name}": value for name, value in headers.items()}
        origin = named.pop("Sec_Fetch_Origin", "")
        more = named | ({"Origin": origin} if origin else {})
        return lab.ask(cookie=cookie, method=method, **more)[0]

    link = {"Mode": "navigate", "Dest": "document"}
    assert status(Site="same-origin") == status(Site="none", **link) == 200
    assert status(Site="cross-site", **link) == 200
    assert status(Site="same-site", **link) == 200
    assert status(Site="same-site", Mode="no-cors", Dest="image") == 403
    assert status(Site="cross-site", Mode="navigate", Dest="iframe") == 403
    assert status(Origin=lab.origin(OTHER)) == 403
    assert status(Origin="null") == 403
    assert status("POST") == status("DELETE", Origin=lab.origin(OTHER)) == 403
    assert status("POST", Site="same-site", **link, Origin=lab.origin()) == 403
    assert status("POST", Site="same-origin", Origin=lab.origin()) == 200


def test_a_page_gets_the_bar_that_warns_before_the_end(lab, alice):
    cookie = lab.enter(alice)
    tab = {"Sec_Fetch_Mode": "navigate", "Sec_Fetch_Site": "none"}
    tab["Accept_Encoding"] = "gzip"
    status, headers, page = lab.ask("/page", cookie, Sec_Fetch_Dest="document", **tab)
    assert status == 200 and page.count(TAG) == 1 and b"<title>Lab" in page
    assert int(headers["Content-Length"]) == len(page)
    assert TAG not in lab.ask("/page", cookie)[2]
    _, _, told = lab.ask("/echo", cookie, Sec_Fetch_Dest="document", **tab)
    assert "accept-encoding" not in seen(told)

    soon = timezone.now() + timedelta(seconds=300)
    Allocation.objects.update(end=soon)
    lab.held.end = soon
    lab.held.save()
    fresh = lab.enter(alice)
    status, headers, told = lab.ask("/.gpuportal/end.json", fresh, Accept_Language="de")
    assert status == 200 and headers["Cache-Control"] == "no-store"
    assert json.loads(told)["step"] == 600
    assert "Diese Reservierung endet in 5 min." in json.loads(told)["text"]
    status, headers, script = lab.ask("/.gpuportal/end.js", fresh)
    assert script == SCRIPT and headers["Content-Type"].startswith("text/javascript")
    for path in ("/.gpuportal/end.js", "/.gpuportal/end.json"):
        assert lab.ask(path, "wrong")[0] == 404
        assert lab.ask(path, fresh, Origin=lab.origin(OTHER))[0] == 403


def test_each_host_has_its_own_side(lab, alice):
    """The portal is at no host of a workspace, and no workspace at the portal's."""
    cookie = lab.enter(alice)
    session = signed_in(alice).cookies["sessionid"].value
    both = f"sessionid={session}; {COOKIE}={cookie}"
    portal = f"localhost:{lab.port}"
    assert lab.ask("/me/", Cookie=both, host=portal)[0] == 200
    assert b'"path": "/me/"' in lab.ask("/me/", Cookie=both)[2]
    assert lab.ask("/echo", Cookie=both, host=portal)[0] == 404
    for host in (
        f"w-{LABEL}.localhost",
        f"w-{LABEL}.localhost:1",
        f"w-{LABEL}.localhost.:{lab.port}",
        f"w-{LABEL.upper()}.localhost:{lab.port}",
        f"x.w-{LABEL}.localhost:{lab.port}",
        f"{LABEL}.localhost:{lab.port}",
        f"www.localhost:{lab.port}",
    ):
        assert lab.ask("/me/", Cookie=both, host=host)[0] == 404, host
        assert b"alice" not in lab.ask("/", Cookie=both, host=host)[2]


def test_requests_that_two_servers_may_read_differently_are_refused(lab, alice):
    cookie = lab.enter(alice)
    head = f"GET /echo HTTP/1.1\r\nHost: {lab.host()}\r\nCookie: {COOKIE}={cookie}\r\n"
    post = head.replace("GET", "POST") + f"Origin: {lab.origin()}\r\n"
    end = "Connection: close\r\n\r\n"
    assert lab.raw(head + end) == 200
    assert lab.raw(f"{head}Host: localhost:{lab.port}\r\n{end}") == 400
    portal = f"GET /me/ HTTP/1.1\r\nHost: localhost:{lab.port}\r\n"
    assert lab.raw(f"{portal}Host: {lab.host()}\r\n{end}") == 400
    both = "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n"
    assert lab.raw(f"{post}{both}{end}0\r\n\r\n") == 400
    assert lab.raw(f"{post}Content-Length: 1\r\nContent-Length: 2\r\n{end}ab") == 400
    assert lab.raw(f"{post}Transfer-Encoding: gzip, chunked\r\n{end}0\r\n\r\n") == 400
    assert (
        lab.raw(f"{post}Transfer-Encoding: chunked\r\n{end}3\r\nabc\r\n0\r\n\r\n")
        == 200
    )
    assert lab.raw(f"{head}X-Long: {'x' * 33_000}\r\n{end}") in (400, 431)
    assert lab.raw(head.replace("GET", "TRACE") + end) in (400, 405)


def test_without_the_setting_there_are_no_workspaces(lab, alice, settings):
    cookie = lab.enter(alice)
    settings.WORKSPACE_ORIGIN = ""
    assert lab.ask(cookie=cookie)[0] == 400, "Django does not know this host"
    page = signed_in(alice).get(f"/reservations/{lab.held.pk}/")
    text = page.content.decode()
    assert "Open JupyterLab" not in text and "Start JupyterLab" not in text
    assert "<code>*.ws.testserver</code>" in text
    pressed = signed_in(alice).post(f"/workspaces/{lab.workspace.pk}/enter/")
    assert pressed.status_code == 404
