"""The bar that warns in a workspace's page before the end of the reservation."""

import json
from datetime import UTC, datetime, timedelta

import pytest
from django.utils import translation

from gpuportal.http import workspace_banner
from gpuportal.http.workspace_banner import (
    _HEAD,
    MOST_START_BYTES,
    SCRIPT,
    TAG,
    PageStart,
    end_state,
    is_page,
    opens_page,
)
from gpuportal.http.workspace_headers import checked_request

pytestmark = pytest.mark.pure
NOW = datetime(2026, 3, 2, 12, 0, tzinfo=UTC)
HTML = (b"content-type", b"text/html; charset=utf-8")


@pytest.mark.parametrize(
    ("pieces", "wanted"),
    (
        ([b"<!doctype html><HEAD lang='x'>", b"<title>"], b"<HEAD lang='x'>%s"),
        ([b"<html><he", b"ad><title>a"], b"<html><head>%s<title>a"),
        ([b"<html><header>no head</header>"], None),
        ([b""], None),
        ([b"x" * (MOST_START_BYTES + 1) + b"<head", b">"], None),
    ),
)
def test_the_script_is_the_first_of_the_head(pieces, wanted):
    page = PageStart([HTML, (b"content-length", b"100")])
    found = None
    for piece in pieces:
        found = found or page.add(piece)
    headers, body = found or page.add(b"", whole=True)
    length = dict(headers)[b"content-length"]
    if wanted is None:
        assert TAG not in body and length == b"100"
    else:
        assert wanted % TAG in body and length == str(100 + len(TAG)).encode()


@pytest.mark.parametrize("cut_bytes", (1, 7, 5000))
def test_a_hostile_page_is_searched_once_however_it_is_divided(cut_bytes, monkeypatch):
    text = (b"<head <head " * MOST_START_BYTES)[: MOST_START_BYTES + 1]
    searched = []

    class Counted:
        def search(self, start, seen, most):
            searched.append(min(len(start), most) - seen)
            return _HEAD.search(start, seen, most)

    monkeypatch.setattr(workspace_banner, "_HEAD", Counted())
    page, found = PageStart([HTML]), None
    for at in range(0, len(text), cut_bytes):
        assert found is None
        found = page.add(text[at : at + cut_bytes])
    assert found == ([HTML], text), "nothing closes the tag"
    plain = PageStart([HTML])
    for _ in range(0, MOST_START_BYTES, cut_bytes):
        plain.add(b"<" * cut_bytes)
    assert max(searched) <= cut_bytes + 6


@pytest.mark.parametrize(
    ("status", "headers", "page"),
    (
        (200, [HTML], True),
        (200, [(b"content-type", b"Text/HTML")], True),
        (200, [HTML, (b"content-encoding", b"gzip")], False),
        (206, [HTML], False),
        (404, [HTML], False),
        (200, [(b"content-type", b"application/json")], False),
        (200, [], False),
    ),
)
def test_only_a_whole_page_that_can_be_read_is_changed(status, headers, page):
    assert is_page(status, headers) is page


@pytest.mark.parametrize(
    ("method", "dest", "opens"),
    (
        ("GET", b"document", True),
        ("GET", b"iframe", False),
        ("GET", b"empty", False),
        ("POST", b"document", False),
    ),
)
def test_only_pages_in_a_tab_get_it(method, dest, opens):
    headers = [(b"host", b"w"), (b"sec-fetch-dest", dest)]
    assert opens_page(checked_request(method, b"/", b"", headers)) is opens


@pytest.mark.parametrize(
    ("left_seconds", "step", "words"),
    (
        (3600, None, ""),
        (601, None, ""),
        (600, 600, "This reservation ends in 10 min. "),
        (45, 60, "This reservation ends in 45 s. "),
        (-5, None, ""),
    ),
)
def test_what_the_bar_says(left_seconds, step, words):
    told = json.loads(end_state(NOW + timedelta(seconds=left_seconds), NOW))
    more = "Save your work, or extend it in GPU Portal." if words else ""
    assert told == {"step": step, "text": words + more, "close": "Close"}


def test_the_bar_speaks_german():
    with translation.override("de"):
        told = json.loads(end_state(NOW + timedelta(seconds=600), NOW))
    assert "10 min" in told["text"] and "Reservierung" in told["text"]
    assert told["close"] != "Close"


def test_the_script_reads_one_address_and_writes_no_markup():
    text = SCRIPT.decode()
    assert text.count("fetch(") == 1 and 'fetch("/.gpuportal/end.json"' in text
    assert "innerHTML" not in text and "insertAdjacentHTML" not in text
