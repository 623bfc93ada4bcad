"""Headers between a browser and a workspace, as pure rules."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuportal.http.workspace_headers import (
    COOKIE,
    checked_request,
    host_only,
    to_browser,
    to_program,
)
from telemetry.protocol.request_refusal import RequestRefused

HOST = (b"host", b"w-a.localhost")


def checked(*headers, method="GET", path=b"/a", query=b""):
    return checked_request(method, path, query, [HOST, *headers])


@pytest.mark.parametrize(
    ("headers", "more", "code"),
    (
        ([(b"Host", b"localhost")], {}, "bad-request"),
        ([(b"content-length", b"+1")], {}, "bad-request"),
        ([(b"content-length", b"1, 1")], {}, "bad-request"),
        ([(b"content-length", b"1")] * 2, {}, "bad-request"),
        ([(b"transfer-encoding", b"chunked")] * 2, {}, "bad-request"),
        ([(b"transfer-encoding", b"identity")], {}, "bad-request"),
        (
            [(b"content-length", b"1"), (b"transfer-encoding", b"chunked")],
            *({}, "bad-request"),
        ),
        ([], {"method": "CONNECT"}, "method"),
        ([], {"method": "get"}, "method"),
        ([], {"path": b"http://localhost/"}, "bad-address"),
        ([], {"path": b"/a b"}, "bad-address"),
        ([], {"path": b"/a\r\nX: y"}, "bad-address"),
        ([], {"query": b"x" * 9000}, "bad-address"),
        ([(b"x", b"y" * 33_000)], {}, "headers-too-large"),
    ),
)
def test_what_is_ambiguous_is_refused(headers, more, code):
    with pytest.raises(RequestRefused) as refused:
        checked(*headers, **more)
    assert refused.value.code == code


def test_the_program_gets_no_credential_and_cannot_forge_the_way():
    given = (
        (b"authorization", b"Bearer x"),
        (b"Cookie", f"a=1; {COOKIE}=x; sessionid=y".encode()),
        (b"cookie", b"csrftoken=z;b=2; django_language=de"),
        (b"connection", b"close, X-Hop"),
        (b"x-hop", b"1"),
        (b"x-forwarded-host", b"evil"),
        (b"x-csrftoken", b"t"),
        (b"accept", b"*/*"),
    )
    headers = to_program(checked(*given), host="w-a.localhost", scheme="http")
    assert dict(headers) == {
        b"host": b"w-a.localhost",
        b"accept": b"*/*",
        b"cookie": b"a=1; b=2",
        b"x-forwarded-proto": b"http",
        b"x-forwarded-host": b"w-a.localhost",
        b"connection": b"close",
    }
    assert len(headers) == 6


def test_an_answer_keeps_its_cookies_at_its_host():
    given = [
        (b"Set-Cookie", b"a=b; domain = gpu.lab ; Secure"),
        (b"Set-Cookie", f"{COOKIE.upper()}=evil; Path=/".encode()),
        (b"Set-Cookie", b"\xc2\xa0sessionid=evil"),
        (b"Set-Cookie", b"=sessionid=evil"),
        (b"Connection", b"X-Hop"),
        (b"X-Hop", b"1"),
        (b"Strict-Transport-Security", b"max-age=1; includeSubDomains"),
        (b"X-Accel-Redirect", b"/protected/backup.tar"),
        (b"X-Accel-Expires", b"86400"),
        (b"X-Sendfile", b"/etc/shadow"),
        (b"X-LIGHTTPD-send-file", b"/etc/shadow"),
        (b"X-Own", b"kept"),
    ]
    assert to_browser(given) == [
        (b"x-own", b"kept"),
        (b"set-cookie", b"a=b; Secure"),
        (b"content-security-policy", b"frame-ancestors 'self'"),
    ]


@given(st.binary(max_size=80))
def test_no_text_of_a_cookie_reaches_another_host(words):
    passed = host_only(b"a=b; " + words)
    names = [one.partition(b"=")[0].strip().lower() for one in passed.split(b";")]
    assert b"domain" not in names and b"\n" not in passed and b"\r" not in passed
