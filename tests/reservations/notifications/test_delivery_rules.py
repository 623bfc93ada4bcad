"""Quiet hours over midnight and changes of the clock; where a webhook may lead."""

from datetime import UTC, datetime, time
from ipaddress import ip_network
from zoneinfo import ZoneInfo

import pytest

from reservations.models import Notice
from reservations.notifications.delivery_rules import channels_of, next_try, quiet_until
from reservations.notifications.text.notice_forms import FORMS
from reservations.notifications.webhook_rules import WebhookRefused, allowed, parse

BERLIN = ZoneInfo("Europe/Berlin")


def test_quiet_hours_over_midnight_follow_the_sites_clock():
    night = {"begin": time(22), "end": time(7), "zone": BERLIN}
    for at, end in (
        (datetime(2026, 7, 1, 20, 30, tzinfo=UTC), datetime(2026, 7, 2, 5, tzinfo=UTC)),
        (datetime(2026, 7, 2, 1, tzinfo=UTC), datetime(2026, 7, 2, 5, tzinfo=UTC)),
        # The clock goes forward in this night: seven comes an hour earlier.
        (datetime(2026, 3, 28, 22, tzinfo=UTC), datetime(2026, 3, 29, 5, tzinfo=UTC)),
        (datetime(2026, 7, 2, 5, tzinfo=UTC), None),
        (datetime(2026, 7, 2, 19, 59, tzinfo=UTC), None),
    ):
        assert quiet_until(at, **night) == end
    noon = {"begin": time(12), "end": time(13), "zone": UTC}
    assert quiet_until(datetime(2026, 7, 1, 12, 30, tzinfo=UTC), **noon) == datetime(
        2026, 7, 1, 13, tzinfo=UTC
    )
    same = {"begin": time(12), "end": time(12), "zone": UTC}
    assert quiet_until(datetime(2026, 7, 1, 12, tzinfo=UTC), **same) is None


def test_every_kind_of_notice_is_declared_with_its_symbol_words_and_channels():
    assert list(FORMS) == Notice.Kind.values


def test_tries_come_to_an_end_and_choices_are_kept():
    at = datetime(2026, 7, 1, tzinfo=UTC)
    waits = [(next_try(at, tries=n) - at).total_seconds() for n in range(1, 6)]
    assert waits == sorted(waits) and waits[0] == 60
    assert next_try(at, tries=6) is None
    assert channels_of("moved", {"moved": ["webhook", "pigeon"]}) == ("webhook",)


@pytest.mark.parametrize(
    "url",
    [
        "http://hooks.example.org/",
        "ftp://hooks.example.org/",
        "https:///path",
        "https://user:word@hooks.example.org/",
        "https://hooks.example.org:port/",
        "https://hooks.example.org/\r\nX-Evil: 1",
        "https://hooks.example.org/a b",
        "https://" + "a" * 400,
        "javascript:alert(1)",
        "http://127.0.0.1.example.org/",
        "",
    ],
)
def test_an_address_that_is_no_plain_https_is_refused(url):
    with pytest.raises(WebhookRefused):
        parse(url, loopback_http=True)


@pytest.mark.parametrize(
    "address",
    [
        *("127.0.0.1", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254"),
        *("0.0.0.0", "100.64.0.1", "224.0.0.1", "255.255.255.255", "192.0.2.1"),
        *("::1", "::", "fe80::1%eth0", "fd00::1", "ff02::1", "::ffff:10.0.0.1"),
        *("64:ff9b::a00:1", "2002:7f00:1::", "2001:db8::1", "fec0::1", "localhost"),
        "",
    ],
)
def test_addresses_inside_a_network_are_not_called(address):
    assert not allowed(address)


def test_public_addresses_and_the_sites_own_networks_are_called():
    assert allowed("8.8.8.8") and allowed("2606:4700::1111")
    inside = [ip_network("10.20.0.0/16"), ip_network("fd00::/64")]
    assert allowed("10.20.3.4", networks=inside) and allowed("fd00::1", networks=inside)
    assert not allowed("10.21.0.1", networks=inside)
