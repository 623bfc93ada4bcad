"""The calendar's API: strict input, problem details, live messages."""

import gzip
import json
from datetime import timedelta

import pytest
from django.utils import timezone

from reservations.models import LedgerEntry, Reservation, SitePolicy
from tests.factories import make_membership, make_reservation
from tests.reservations.calling import BASE, Caller, iso, wish


@pytest.mark.once
def test_booking_changing_cancelling_and_undoing(gpus, alice, hour) -> None:
    call = Caller(alice)
    made = call("POST", "/reservations", wish(gpus[:2], hour, purpose="my run"))
    assert made.status_code == 201, made.body
    assert made.body["kind"] == "firm"
    assert made.body["mine"] and made.body["editable"]
    assert made.body["gpu_ids"] == [gpus[0].pk, gpus[1].pk]
    assert made.body["purpose"] == "my run"
    assert made.body["start"].endswith("Z")
    path = f"/reservations/{made.body['id']}"
    longer = (hour + timedelta(hours=3)).isoformat()
    changed = call("PATCH", path, {"end": longer, "version": made.body["version"]})
    assert changed.status_code == 200, changed.body
    assert changed.body["version"] == 2
    stale = call("PATCH", path, {"end": longer, "version": 1})
    assert (stale.status_code, stale.body["code"]) == (409, "stale-version")
    gone = call("POST", f"{path}/cancel")
    assert (gone.status_code, gone.body["state"]) == (200, "cancelled")
    back = call("POST", f"{path}/undo")
    assert (back.status_code, back.body["state"]) == (200, "confirmed")
    released = call("POST", f"{path}/release")
    assert (released.status_code, released.body["code"]) == (409, "not-changeable")


@pytest.mark.once
def test_what_runs_can_be_kept_and_released(gpus, alice) -> None:
    now = timezone.now()
    end = now.replace(minute=0, second=0, microsecond=0) + timedelta(hours=2)
    call = Caller(alice)
    made = call(
        "POST",
        "/reservations",
        {"gpu_ids": [gpus[0].pk], "start": now.isoformat(), "end": end.isoformat()},
    )
    assert (made.status_code, made.body["state"]) == (201, "active")
    path = f"/reservations/{made.body['id']}"
    assert call("POST", f"{path}/keep").body["keep_used"] is True
    assert call("POST", f"{path}/keep").body["code"] == "keep-used"
    assert call("POST", f"{path}/release", {}).body["state"] == "released"


@pytest.mark.once
def test_a_refusal_is_a_problem_with_numbers_and_the_next_slot(
    gpus, alice, bob, hour
) -> None:
    assert Caller(alice)("POST", "/reservations", wish(gpus[:1], hour)).status_code
    answer = Caller(bob)("POST", "/reservations", wish(gpus[:1], hour))
    assert answer.status_code == 409
    assert answer["content-type"] == "application/problem+json"
    assert answer.body["code"] == "gpu-taken"
    assert answer.body["numbers"]["user"] == "Alice"
    assert answer.body["next_slot"]["gpu_ids"] == [gpus[1].pk]
    assert "Alice" in answer.body["detail"]


@pytest.mark.once
@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"start": "yesterday"}, "start"),
        ({"start": "2026-11-21T14:00:00"}, "start"),
        ({"end": "9999-12-31T23:59:59Z"}, "end"),
        ({"gpu_ids": ["1"]}, "gpu_ids.0"),
        ({"gpu_ids": [True]}, "gpu_ids.0"),
        ({"gpu_ids": [0]}, "gpu_ids.0"),
        ({"gpu_ids": [2**70]}, "gpu_ids.0"),
        ({"gpu_ids": list(range(1, 80))}, "gpu_ids"),
        ({"gpu_ids": None}, "gpu_ids"),
        ({"membership": 1.5}, "membership"),
        ({"purpose": "x" * 121}, "purpose"),
        ({"purpose": "nul\x00"}, "purpose"),
        ({"purpose": "\u202etxet"}, "purpose"),
        ({"kind": "firm"}, "kind"),
    ],
)
def test_wrong_fields_are_named(gpus, alice, hour, change, field) -> None:
    answer = Caller(alice)("POST", "/reservations", wish(gpus[:1], hour) | change)
    assert answer.status_code == 422, answer.body
    assert answer["content-type"] == "application/problem+json"
    assert list(answer.body["fields"]) == [field]
    assert not Reservation.objects.exists()


def test_a_body_that_is_no_json_is_refused(gpus, alice) -> None:
    client = Caller(alice).client
    answer = client.post(f"{BASE}/reservations", "{", content_type="application/json")
    assert answer.status_code == 400
    assert answer.json()["code"] == "bad-request"


@pytest.mark.once
def test_the_calendar_costs_the_same_queries_with_many_reservations(
    gpus, alice, hour, django_assert_num_queries
) -> None:
    span = f"/calendar?start={iso(hour)}&end={iso(hour + timedelta(days=14))}"
    call = Caller(alice)
    call("GET", span)
    for many in (1, 40):
        for number in range(many):
            start = hour + timedelta(hours=3 * (many + number))
            make_reservation(alice, gpus, start, start + timedelta(hours=2))
        # session, user, policy, headed accounts, gpus, allocations, shared, series,
        # closures, and who waits
        with django_assert_num_queries(11):
            answer = call("GET", span)
    assert len(answer.body["reservations"]) == 41
    assert answer.body["reservations"][0]["gpu_ids"] == [gpu.pk for gpu in gpus]


def test_booking_costs_few_queries(gpus, alice, hour) -> None:
    from django.db import connection
    from django.test.utils import CaptureQueriesContext

    call = Caller(alice)
    call("POST", "/reservations", wish(gpus[:1], hour))
    with CaptureQueriesContext(
        connection,
    ) as seen:
        made = call("POST", "/reservations", wish(gpus[1:3], hour))
    assert made.status_code == 201
    own = [q for q in seen.captured_queries if "SAVEPOINT" not in q["sql"]]
    assert len(own) <= 24, [q["sql"][:90] for q in own]


@pytest.mark.once
def test_the_calendar_is_compressed_for_those_who_can(gpus, alice, hour) -> None:
    for number in range(20):
        start = hour + timedelta(hours=3 * number)
        make_reservation(alice, gpus, start, start + timedelta(hours=2))
    span = f"{BASE}/calendar?start={iso(hour)}&end={iso(hour + timedelta(days=7))}"
    client = Caller(alice).client
    for refused in ("br, gzip;q=0", "gzip; q=0.0, br", "identity"):
        answer = client.get(span, headers={"accept-encoding": refused})
        assert "Content-Encoding" not in answer
    packed = client.get(span, headers={"accept-encoding": "br, gzip;q=0.5"})
    assert packed["Content-Encoding"] == "gzip"
    assert len(json.loads(gzip.decompress(packed.content))["reservations"]) == 20


@pytest.mark.once
@pytest.mark.parametrize(
    "query",
    [
        "start=2026-03-02T00:00:00Z",
        "start=2026-03-02T00:00:00Z&end=nonsense",
        "start=2026-03-02T00:00:00Z&end=2026-03-01T00:00:00Z",
        "start=2026-03-02T00:00:00Z&end=2027-03-01T00:00:00Z",
    ],
)
def test_a_span_that_makes_no_sense_is_refused(gpus, alice, query) -> None:
    assert Caller(alice)("GET", f"/calendar?{query}").status_code in (409, 422)


@pytest.mark.once
def test_slots_are_found_and_a_preview_agrees(gpus, alice, bob, hour) -> None:
    Caller(bob)("POST", "/reservations", wish(gpus, hour, 3))
    call = Caller(alice)
    query = f"/slots?count=2&hours=2&min_memory_gib=40&earliest={iso(hour)}"
    found = call("GET", query)
    assert found.status_code == 200, found.body
    first = found.body["slots"][0]
    assert first["start"] == iso(hour + timedelta(hours=3))
    body = {key: first[key] for key in ("gpu_ids", "start", "end")}
    seen = call("POST", "/reservations/preview", body)
    assert (seen.body["ok"], seen.body["kind"]) == (True, first["kind"])
    assert call("POST", "/reservations", body).status_code == 201
    assert call("GET", "/slots?count=99").status_code == 422
    for name in ("hours", "min_memory_gib"):
        refused = call("GET", f"/slots?count=2&{name}=nan")
        assert refused.status_code == 422
        assert "The number must be finite." in str(refused.body)


@pytest.mark.once
def test_a_search_that_finds_nothing_names_the_rule(gpus, alice, bob, hour) -> None:
    call = Caller(alice)
    never = call("GET", "/slots?gpu_class=nonsense")
    assert (never.status_code, never.body["code"]) == (409, "never-fits")
    assert never.body["detail"].startswith("There is no class nonsense. The classes")
    never = call("GET", "/slots?min_memory_gib=900")
    assert never.body["detail"].startswith("No GPU here has 900 GiB. The largest has")

    end = iso(hour + timedelta(hours=2))
    query = f"/slots?hours=2&earliest={iso(hour)}&latest={end}"
    policy = SitePolicy.current()
    policy.live_reservations = 1
    policy.save()
    call("POST", "/reservations", wish(gpus[:1], hour + timedelta(hours=4)))
    answer = call("GET", query).body
    assert answer["slots"] == [] and answer["full"] == {"live": 1, "most": 1}
    assert answer["refusal"]["code"] == "too-many-reservations"
    assert answer["refusal"]["numbers"] == {"live": 1, "most": 1}
    Caller(bob)("POST", "/reservations", wish(gpus, hour, 2))
    assert call("GET", query).body["refusal"] is None, "nothing is free"


@pytest.mark.once
def test_too_many_gpus_name_those_that_would_work(gpus, alice, hour) -> None:
    policy = SitePolicy.current()
    policy.gpus_at_once = 1
    policy.save()
    call = Caller(alice)
    seen = call("POST", "/reservations/preview", wish(gpus[:2], hour)).body
    assert seen["refusal"]["code"] == "too-many-gpus"
    fewer = seen["works_instead"]
    assert fewer["gpu_ids"] in ([gpus[0].pk], [gpus[1].pk])
    answer = call("POST", "/reservations", wish(gpus[:2], hour))
    assert answer.status_code == 409
    told = answer.body["works_instead"]
    assert told == {key: fewer[key] for key in ("gpu_ids", "start", "end")}
    assert call("POST", "/reservations", told).status_code == 201


@pytest.mark.once
def test_a_preview_says_why_not(gpus, alice, bob, hour) -> None:
    Caller(bob)("POST", "/reservations", wish(gpus[:1], hour))
    seen = Caller(alice)("POST", "/reservations/preview", wish(gpus[:1], hour)).body
    assert seen["ok"] is False
    assert seen["refusal"]["code"] == "gpu-taken"
    assert seen["next_slot"]["gpu_ids"] == [gpus[1].pk]


@pytest.mark.once
def test_the_standing_has_path_quota_and_ledger(gpus, alice, bob, hour) -> None:
    call = Caller(alice)
    call("POST", "/reservations", wish(gpus[:2], hour))
    seen = call("GET", "/standing").body
    own = seen["memberships"][0]
    assert (own["account"], own["rank"], own["of"]) == ("vision", 2, 2)
    assert [level["name"] for level in own["path"]] == ["institute", "vision", "alice"]
    assert own["path"][-1]["usage_credits"] == 40
    assert own["quotas"][0]["left_credits"] == 360
    assert min(p["left_credits"] for p in own["quotas"][0]["band"]) == 360
    assert seen["ledger"][0]["reason"] == "booked firm"


@pytest.mark.once
def test_what_is_booked_is_told_to_both_audiences(
    gpus, alice, hour, redis_client, django_capture_on_commit_callbacks
) -> None:
    from asgiref.sync import async_to_sync
    from channels.layers import get_channel_layer

    from reservations.notifications import live

    layer = get_channel_layer()
    names = {}
    for group in (live.NAMED, live.PLAIN):
        names[group] = async_to_sync(layer.new_channel)()
        async_to_sync(layer.group_add)(group, names[group])
    listener = redis_client.pubsub()
    listener.subscribe(live.CHANGED)
    assert listener.get_message(timeout=60)
    with django_capture_on_commit_callbacks(execute=True):
        made = Caller(alice)("POST", "/reservations", wish(gpus[:1], hour)).body
    named = async_to_sync(layer.receive)(names[live.NAMED])
    plain = async_to_sync(layer.receive)(names[live.PLAIN])
    assert named["type"] == plain["type"] == "reservation.changed"
    assert (named["reservation"]["user"], plain["reservation"]["user"]) == (
        "Alice",
        None,
    )
    assert named["reservation"]["id"] == made["id"]
    told = listener.get_message(timeout=60)
    assert told is not None and json.loads(told["data"]) == {"id": made["id"]}
    listener.close()


@pytest.mark.once
def test_a_broker_that_is_away_costs_no_booking(
    gpus, alice, hour, monkeypatch, django_capture_on_commit_callbacks
) -> None:
    import redis as redis_module

    from reservations.notifications import live

    # A socket that nobody listens on.
    away = redis_module.Redis.from_url("unix:///nowhere/else.sock?db=0")
    monkeypatch.setattr(live, "BROKER", away)
    monkeypatch.setattr("reservations.web.rate_limits.BROKER", away)
    with django_capture_on_commit_callbacks(execute=True):
        made = Caller(alice)("POST", "/reservations", wish(gpus[:1], hour))
    assert made.status_code == 201
    assert LedgerEntry.objects.count() == 1


@pytest.mark.once
def test_two_memberships_must_be_chosen_between(gpus, alice, hour) -> None:
    second = make_membership(alice, "nlp")
    call = Caller(alice)
    answer = call("POST", "/reservations", wish(gpus[:1], hour))
    assert (answer.status_code, answer.body["code"]) == (409, "membership-needed")
    made = call("POST", "/reservations", wish(gpus[:1], hour, membership=second.pk))
    assert made.body["account"] == "nlp"
    assert call("GET", "/slots?count=1").status_code == 200
