"""The operator's pages of pools, machines, closed time and policies."""

import re
from datetime import timedelta

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from reservations.models import AuditEntry, Closure, PoolQuota, SitePolicy
from reservations.operations import policies
from reservations.operations.policy_views import _form
from reservations.rules.lifecycle import State
from reservations.rules.prices import read_peak
from reservations.store.booking_facts import site_policy
from reservations.store.calendar_queries import Reader, calendar_page
from telemetry.models import Gpu, Pool, TelemetryPolicy
from tests.factories import make_gpus, make_node, make_pool, make_reservation

PAGES = [
    ("manage-pools", ()),
    ("manage-pool", (1,)),
    ("manage-gpus", ()),
    ("manage-replace-gpu", ()),
    ("manage-closures", ()),
    ("manage-closure-new", ()),
    ("manage-closure", (1,)),
    ("manage-policy", ()),
    ("manage-policy-one", ("telemetry",)),
]
POSTS = [
    ("manage-pool-new", ()),
    ("manage-pool", (1,)),
    ("manage-pool-quota", (1,)),
    ("manage-gpus-act", ()),
    ("manage-replace-gpu", ()),
    ("manage-drain", (1,)),
    ("manage-gate", (1,)),
    ("manage-closure-new", ()),
    ("manage-closure", (1,)),
    ("manage-closure-end", (1,)),
    ("manage-policy-one", ("booking",)),
    ("manage-policy-undo", ("booking", 1)),
]


@pytest.fixture
def desk(client, omar, gpus):
    client.force_login(omar)
    return client


def post(client, name, data, *args, status=None):
    answer = client.post(reverse(name, args=args), data, follow=True)
    assert status is None or answer.status_code == status, answer.content.decode()
    return answer, answer.content.decode()


def act_on_gpus(client, data) -> None:
    answer, _ = post(client, "manage-gpus-act", data, status=200)
    save = data | {"save": 1, "mark": answer.context["review"].mark}
    answer, _ = post(client, "manage-gpus-act", save, status=200)
    assert answer.redirect_chain


def wall(hours: int) -> str:
    at = timezone.localtime() + timedelta(hours=hours)
    return at.strftime("%Y-%m-%dT%H:00")


@pytest.mark.once
def test_nobody_but_the_operator_reaches_any_of_these_pages(
    client, alice, gpus
) -> None:
    alice.memberships.update(is_head=True)
    client.force_login(alice)
    for name, args in PAGES:
        assert client.get(reverse(name, args=args)).status_code == 403, name
    before = AuditEntry.objects.count()
    for name, args in POSTS:
        data = {"act": "drain", "gpus": [1], "save": 1, "draining": "on"}
        assert client.post(reverse(name, args=args), data).status_code == 403, name
    assert AuditEntry.objects.count() == before
    assert not Gpu.objects.filter(draining=True).exists()
    client.logout()
    answer = client.get(reverse("manage-closures"))
    assert (answer.status_code, answer.url.split("?")[0]) == (302, "/login/")


@pytest.mark.once
def test_strange_addresses_are_404_or_a_page_and_never_a_crash(desk) -> None:
    for name, args, status in (
        ("manage-pool", (10**9,), 404),
        ("manage-closure", (10**9,), 404),
        ("manage-policy-one", ("weather",), 404),
    ):
        assert desk.get(reverse(name, args=args)).status_code == status
    for name, args in (
        ("manage-closure-end", (10**9,)),
        ("manage-policy-undo", ("booking", 10**9)),
        ("manage-policy-undo", ("weather", 1)),
        ("manage-pool-quota", (10**9,)),
    ):
        assert desk.post(reverse(name, args=args), {}).status_code == 404
    for name, query in (
        ("manage-gpus", "node=x&pool=-1&state=moon&sort=%00&page=zz&q=%27"),
        ("manage-closures", "show=moon&kind=x&page=-1&q=%25"),
        ("manage-closure-new", "gpus=x&gpus=99999999999999999999&kind=party"),
        ("manage-replace-gpu", "old=99999999999999999999999"),
    ):
        assert desk.get(f"{reverse(name)}?{query}").status_code == 200, name
    for name in ("manage-closure-new", "manage-gpus-act", "manage-replace-gpu"):
        assert desk.post(reverse(name), {"gpus": ["x"]}).status_code == 422
    assert desk.post(reverse("manage-pool-new"), {}).status_code == 422
    pool = Pool.objects.first() or make_pool("A4000")
    row = Closure.objects.create(
        kind="blackout",
        scope="pool",
        pool=pool,
        start=timezone.now(),
        reason="r",
        end=timezone.now() + timedelta(hours=1),
    )
    for huge in ("9" * 5000, str(2**63), "\u00b2"):
        for name, args, data, status in (
            ("manage-closure-new", (), {"gpus": [huge]}, 422),
            ("manage-gpus-act", (), {"gpus": [huge], "act": "drain"}, 422),
            ("manage-pool", (pool.pk,), {"accounts": [huge]}, 422),
            ("manage-closure-end", (row.pk,), {"version": huge}, 302),
            ("manage-drop", (), {"edit": huge}, 302),
        ):
            answer = desk.post(reverse(name, args=args), data)
            assert answer.status_code == status, (name, huge[:20])
    row.refresh_from_db()
    assert row.cancelled_at is None


def test_a_closure_is_looked_at_saved_changed_and_cancelled(desk, alice, gpus) -> None:
    start = timezone.now().replace(minute=0, second=0, microsecond=0)
    booked = make_reservation(
        alice, gpus, start + timedelta(hours=30), start + timedelta(hours=32)
    )
    data = {
        "kind": "maintenance",
        "reason": "<b>new fans</b>",
        "start": wall(29),
        "end": wall(40),
        "scope": "node",
        "node": gpus[0].node_id,
    }
    answer, text = post(desk, "manage-closure-new", data, status=200)
    assert not Closure.objects.exists()
    assert "1 affected booking" in text
    assert "cancelled with full refund" in text
    assert "&lt;b&gt;new fans" in text
    mark = answer.context["review"].mark
    _, text = post(
        desk, "manage-closure-new", data | {"save": 1, "mark": "x"}, status=409
    )
    assert "Check the list again" in text
    _, text = post(desk, "manage-closure-new", data | {"save": 1, "mark": mark})
    assert (
        "Maintenance saved. Bookings: 1 refunded. The affected users are notified."
        in text
    )
    booked.refresh_from_db()
    assert booked.state == State.REFUNDED
    row = Closure.objects.get()
    changed = data | {"end": wall(35), "version": row.version}
    answer, text = post(desk, "manage-closure", changed, row.pk, status=200)
    assert "No booking is affected" in text
    sure = changed | {"save": 1, "mark": answer.context["review"].mark}
    post(desk, "manage-closure", sure, row.pk, status=200)
    _, text = post(desk, "manage-closure", sure, row.pk, status=409)
    assert "changed in the meantime" in text
    wrong = data | {"kind": "teaching", "end": wall(1)}
    _, text = post(desk, "manage-closure-new", wrong, status=422)
    assert "The end is not after the start." in text
    assert "Choose the group" in text
    _, text = post(desk, "manage-closure-end", {"version": 2}, row.pk)
    assert "Bookings that it moved or refunded are not changed back." in text
    row.refresh_from_db()
    assert row.cancelled_at is not None


@pytest.mark.once
def test_near_maintenance_is_on_every_page_and_closures_in_the_calendar(
    client, alice, carol, gpus
) -> None:
    now = timezone.now().replace(microsecond=0)
    node, hour = gpus[0].node, timedelta(hours=1)
    vision = alice.memberships.get().account
    Closure.objects.create(
        kind="maintenance",
        scope="node",
        node=node,
        reason="<i>fans</i>",
        start=now + 3 * hour,
        end=now + 5 * hour,
    )
    course = Closure.objects.create(
        kind="teaching",
        scope="site",
        reason="lab",
        account=vision,
        start=now + 30 * hour,
        end=now + 32 * hour,
    )
    span = {
        "start": now.isoformat(),
        "end": (now + timedelta(days=3)).isoformat(),
    }
    for user, admitted in ((alice, True), (carol, False)):
        client.force_login(user)
        page = client.get(reverse("standing")).content.decode()
        assert f"Maintenance of {node.name}" in page
        assert "&lt;i&gt;fans" in page
        assert "lab" not in page.split("data-closing")[1][:400]
        told = client.get("/api/v1/calendar", span).json()["closures"]
        assert [one["kind"] for one in told] == ["maintenance", "teaching"]
        assert told[1] == {
            "id": course.pk,
            "kind": "teaching",
            "reason": "lab",
            "start": f"{now + 30 * hour:%Y-%m-%dT%H:%M:%SZ}",
            "end": f"{now + 32 * hour:%Y-%m-%dT%H:%M:%SZ}",
            "gpu_ids": [gpu.pk for gpu in gpus],
            "account": "vision",
            "open": admitted,
        }
        assert [one["open"] for one in told] == [False, admitted]


def test_a_pool_is_priced_kept_and_limited_with_its_history(desk, alice, gpus) -> None:
    vision = alice.memberships.get().account
    pool = gpus[0].pool
    data = {"weight": 12, "accounts": [vision.pk], "reason": "dearer"}
    answer, text = post(desk, "manage-pool", data, pool.pk, status=200)
    assert "What changes" in text and "Saved." not in text
    save = data | {"save": 1, "mark": answer.context["review"].mark}
    _, text = post(desk, "manage-pool", save | {"mark": "old"}, pool.pk, status=409)
    assert "Another person has changed the pool" in text
    _, text = post(desk, "manage-pool", save, pool.pk, status=200)
    assert "Saved." in text
    assert "dearer" in text
    data = {
        "account": vision.pk,
        "login": "alice",
        "quota_gpu_seconds": "10",
        "reason": "fair",
    }
    post(desk, "manage-pool-quota", data, pool.pk, status=200)
    quota = PoolQuota.objects.get()
    assert (quota.membership, quota.quota_gpu_seconds) == (
        alice.memberships.get(),
        36_000,
    )
    _, text = post(desk, "manage-pool-quota", data | {"login": "eve"}, pool.pk)
    assert "no member with this user name" in text
    post(desk, "manage-pool-quota", data | {"quota_gpu_seconds": ""}, pool.pk)
    assert not PoolQuota.objects.exists()
    _, text = post(desk, "manage-pool", {"weight": 0, "reason": "x"}, pool.pk)
    assert "Enter a whole number from 1 to" in text
    made, _ = post(
        desk, "manage-pool-new", {"name": "Teaching", "weight": 4, "reason": "course"}
    )
    assert made.context["pool"].gpu_class == "Teaching"
    twice = {"name": "teaching ", "weight": 4, "reason": "course"}
    _, text = post(desk, "manage-pool-new", twice, status=422)
    assert "A pool of this name exists." in text
    # Every input of the page has its own label.
    text = desk.get(reverse("manage-pool", args=[pool.pk])).content.decode()
    ids = re.findall(r' id="([^"]+)"', text)
    assert len(ids) == len(set(ids))
    assert 'for="quota_reason"' in text and 'id="quota_reason"' in text
    assert "Vision" in desk.get(reverse("manage-pools")).content.decode()


def test_a_change_of_a_pool_is_undone_while_nobody_changed_it_since(
    desk, alice, gpus
) -> None:
    vision = alice.memberships.get().account
    pool, weight = gpus[0].pool, gpus[0].pool.weight
    data = {"weight": weight + 1, "accounts": [vision.pk], "reason": "dearer"}
    data |= {"peak_factor": 3, "peak_hours": "Sat 10-14"}
    for change in (data, data | {"accounts": [], "peak_factor": 1, "peak_hours": ""}):
        answer, _ = post(desk, "manage-pool", change, pool.pk, status=200)
        save = change | {"save": 1, "mark": answer.context["review"].mark}
        post(desk, "manage-pool", save, pool.pk, status=200)
    first, second = AuditEntry.objects.filter(verb="pool.changed").order_by("pk")
    _, text = post(desk, "manage-pool-undo", {}, pool.pk, first.pk, status=200)
    assert "Another person has changed the pool" in text
    _, text = post(desk, "manage-pool-undo", {}, pool.pk, second.pk, status=200)
    assert "Undone." in text
    rule = pool.rule
    assert [account.pk for account in rule.accounts.all()] == [vision.pk]
    assert (rule.restricted, read_peak(rule.peak).factor) == (True, 3)
    undone = AuditEntry.objects.get(verb="pool.undone")
    assert undone.detail["after"] == second.detail["before"]
    _, text = post(desk, "manage-pool-undo", {}, pool.pk, undone.pk, status=200)
    rule.refresh_from_db()
    assert not rule.peak and not rule.accounts.exists()
    assert (
        desk.post(reverse("manage-pool-undo", args=[pool.pk, 10**9])).status_code == 404
    )


def test_many_gpus_are_drained_moved_and_put_into_a_pool_at_once(
    desk, alice, gpus
) -> None:
    other = make_pool("NVIDIA L4", weight=3)
    start = timezone.now() + timedelta(hours=20)
    booked = make_reservation(alice, gpus[:1], start)
    pks = [gpu.pk for gpu in gpus[:2]]
    drain = {"act": "drain", "gpus": pks, "move_booked": "on"}
    answer, text = post(desk, "manage-gpus-act", drain, status=200)
    assert f"#{booked.pk}" in text
    assert not Gpu.objects.filter(draining=True).exists()
    save = drain | {"save": 1, "mark": answer.context["review"].mark}
    _, text = post(desk, "manage-gpus-act", save, status=422)
    assert "Give a reason" in text
    save |= {"reason": "fans"}
    late = make_reservation(alice, gpus[:1], start + timedelta(days=1))
    answer, text = post(desk, "manage-gpus-act", save, status=409)
    assert f"#{late.pk}" in text
    assert not Gpu.objects.filter(draining=True).exists()
    save |= {"mark": answer.context["review"].mark}
    _, text = post(desk, "manage-gpus-act", save, status=200)
    assert "Drain: 2 GPUs changed. 2 bookings moved, 0 stay." in text
    assert booked.allocations.get().gpu == gpus[2]
    _, text = post(desk, "manage-gpus-act", {"act": "pool", "gpus": pks}, status=422)
    assert "Choose a pool" in text
    data = {"act": "pool", "gpus": pks, "pool": other.pk, "reason": "r"}
    act_on_gpus(desk, data)
    assert list(other.gpus.values_list("pk", flat=True)) == pks
    answer, _ = post(desk, "manage-gpus-act", {"act": "maintenance", "gpus": pks})
    assert answer.context["form"].initial["gpus"] == pks
    listed = desk.get(reverse("manage-gpus"), {"state": "draining"}).context["gpus"]
    assert [gpu.pk for gpu in listed] == pks
    node = {"draining": "on", "reason": "move"}
    post(desk, "manage-drain", node, gpus[0].node_id, status=200)
    gpus[0].node.refresh_from_db()
    assert gpus[0].node.draining
    _, text = post(
        desk, "manage-drain", {"draining": "on"}, gpus[0].node_id, status=200
    )
    assert "Give a reason" in text
    # Everybody reads why; the operator also who and since when.
    assert "move" in desk.get(reverse("manage-pools")).content.decode()
    assert '{"node' in desk.get("/").content.decode()
    # Its end needs no reason.
    post(desk, "manage-drain", {}, gpus[0].node_id, status=200)
    gpus[0].node.refresh_from_db()
    assert not gpus[0].node.draining


@pytest.mark.once
def test_why_a_single_gpu_drains_is_read_by_everybody(desk, alice, gpus) -> None:
    first, second = gpus[0], gpus[1]
    # Typed before its form announced that everybody reads it: stored only in the audit
    # log.
    AuditEntry.objects.create(
        verb="gpu.drain", subject=f"gpu:{second.pk}", reason="private"
    )
    Gpu.objects.filter(pk=second.pk).update(draining=True)
    drain = {"act": "drain", "gpus": [first.pk], "reason": "loud fan"}
    act_on_gpus(desk, drain)
    student = Client()
    student.force_login(alice)
    board = student.get("/").content.decode()
    assert f'"{first.pk}": "loud fan"' in board
    page = student.get(reverse("gpu", args=[first.pk])).content.decode()
    assert "no new bookings: loud fan" in page
    now = timezone.now()
    seen = calendar_page(
        now,
        now + timedelta(days=1),
        reader=Reader.of(alice, site_policy()),
        policy=site_policy(),
        now=now,
    )
    whys = {one["id"]: one["out_reason"] for one in seen.gpus}
    assert whys[first.pk] == "It is draining: no new bookings. Reason: loud fan"
    assert whys[second.pk] == "It is draining: no new bookings."
    assert "private" not in board
    # Its node drains, too: the reason of the GPU itself is the nearer one.
    post(desk, "manage-drain", {"draining": "on", "reason": "moves"}, first.node_id)
    page = student.get(reverse("gpu", args=[first.pk])).content.decode()
    assert "no new bookings: loud fan" in page
    page = student.get(reverse("gpu", args=[gpus[2].pk])).content.decode()
    assert "no new bookings: moves" in page
    # A drain that ended and began again has its newest reason.
    act_on_gpus(desk, drain | {"act": "drain-ended", "reason": "done"})
    act_on_gpus(desk, drain | {"reason": "new cable"})
    board = student.get("/").content.decode()
    assert "new cable" in board
    assert "loud fan" not in board


def test_a_replacement_is_looked_at_and_done(desk, alice, gpus) -> None:
    new = make_gpus(1, make_node("node-new"))[0]
    booked = make_reservation(alice, gpus[:1], timezone.now() + timedelta(hours=9))
    data = {"old": gpus[0].pk, "new": new.pk, "reason": "broken fan"}
    answer, text = post(desk, "manage-replace-gpu", data, status=200)
    assert "What happens to it" in text
    mark = answer.context["review"].mark
    _, text = post(desk, "manage-replace-gpu", data | {"save": 1, "mark": mark})
    assert "1 booking moved. 0 not changed." in text
    assert booked.allocations.get().gpu == new
    _, text = post(desk, "manage-replace-gpu", data, status=422)


def fields(client, which: str) -> dict[str, object]:
    form = client.get(reverse("manage-policy-one", args=[which])).context["form"]
    values = {name: form[name].value() for name in form.fields}
    return {name: value for name, value in values.items() if value is not False}


def test_the_booking_policy_is_looked_at_saved_and_undone(desk) -> None:
    page = desk.get(reverse("manage-policy-one", args=["booking"])).content.decode()
    assert "How long before its start nobody can take a flex" in page
    data = fields(desk, "booking") | {"freeze_seconds": 6 * 3600}
    answer, text = post(desk, "manage-policy-one", data, "booking", status=200)
    assert "12 h" in text
    assert "6 h" in text
    assert SitePolicy.current().freeze_seconds == 12 * 3600
    mark = answer.context["review"].mark
    save = data | {"save": 1, "mark": mark}
    post(desk, "manage-policy-one", save, "booking", status=422)
    SitePolicy.objects.update(freeze_seconds=3600)
    save |= {"reason": "shorter nights"}
    post(desk, "manage-policy-one", save, "booking", status=409)
    SitePolicy.objects.update(freeze_seconds=12 * 3600)
    _, text = post(desk, "manage-policy-one", save, "booking", status=200)
    assert "1 rule changed." in text
    assert "shorter nights" in text
    entry = AuditEntry.objects.get(verb="policy.changed")
    assert entry.detail["before"] == {"freeze_seconds": 12 * 3600}
    _, text = post(desk, "manage-policy-undo", {}, "booking", entry.pk)
    assert SitePolicy.current().freeze_seconds == 12 * 3600
    _, text = post(desk, "manage-policy-undo", {}, "booking", entry.pk)
    assert "Another person has changed the policy" in text
    # Between fields, and by field.
    bad = data | {"flex_horizon_seconds": 20 * 86_400}
    _, text = post(desk, "manage-policy-one", bad, "booking", status=422)
    assert "is beyond the firm horizon" in text
    bad = data | {"idle_seconds": "soon"}
    _, text = post(desk, "manage-policy-one", bad, "booking", status=422)
    assert "Type a length of time" in text


def test_rules_are_typed_as_people_say_them_and_grouped(desk) -> None:
    page = desk.get(reverse("manage-policy-one", args=["booking"])).content.decode()
    assert 'value="14 d"' in page
    assert "After several no-shows" in page
    data = fields(desk, "booking")
    assert data["quota_gpu_seconds"] == "400"
    typed = data | {"freeze_seconds": "1 h 30 min", "quota_gpu_seconds": "60 credits"}
    answer, _ = post(desk, "manage-policy-one", typed, "booking", status=200)
    assert answer.context["review"].plan.changes == {
        "freeze_seconds": (12 * 3600, 5400),
        "quota_gpu_seconds": (400 * 3600, 60 * 3600),
    }
    for name, text in (
        ("longest_seconds", "400 d"),
        ("grid_seconds", ""),
        ("half_life_seconds", "-3 d"),
        ("firm_horizon_seconds", "9" * 90),
        ("quota_gpu_seconds", "many"),
        ("quota_gpu_seconds", ""),
        ("gpus_at_once", "x"),
        ("job_folder_bytes", "a lot"),
    ):
        _, page = post(
            desk, "manage-policy-one", data | {name: text}, "booking", status=422
        )
        # One error by one field, in the units of the page.
        assert page.count('<span class="error" role="alert">') == 1, (name, page)
        assert "[&#x27;" not in page
        assert "1209600" not in page.split('class="error"')[1][:200]


def test_every_rule_has_one_pair_of_limits(desk) -> None:
    data = fields(desk, "booking")
    assert data["job_folder_bytes"] == "100 GiB"

    def said(name: str, typed: str) -> str:
        form = _form("booking", policies.fields_of("booking"), data | {name: typed})
        return " ".join(form.errors[name])

    live = "Enter a whole number from 1 to 1,000."
    for typed in ("-1", "0", "1001", "abc"):
        assert said("live_reservations", typed) == live
    ratio = "Enter a number from 0 to 1."
    for typed in ("NaN", "abc", "2"):
        assert said("late_return_ratio", typed) == ratio
    figure = "Enter a number of credits, such as 40."
    for typed in ("½", "", "nan"):
        assert said("person_quota_gpu_seconds", typed) == figure
    shown = next(
        rule
        for rule in policies.fields_of("booking")
        if rule.name == "person_quota_gpu_seconds"
    ).limits
    least, most = shown.split(" to ")
    words = f"Choose between {least} and {most}."
    assert said("person_quota_gpu_seconds", "3e9") == words
    assert said("longest_seconds", "400 d").startswith("Choose between ")
    assert " to " not in said("longest_seconds", "400 d")
    changes = data | {"job_folder_bytes": "1.5 TiB"}
    _, text = post(desk, "manage-policy-one", changes, "booking", status=200)
    assert "100 GiB" in text and "1536 GiB" in text
    assert "107374182400" not in text


def test_only_on_drains_a_node(desk, gpus) -> None:
    node = gpus[0].node
    wrong = {"draining": "maybe", "reason": "fans"}
    _, text = post(desk, "manage-drain", wrong, node.pk, status=200)
    assert "Enter “on”, or leave it out." in text
    node.refresh_from_db()
    assert not node.draining


def test_the_hour_of_a_clock_change_is_named_on_the_closure(
    desk, gpus, settings
) -> None:
    node = gpus[0].node
    data = {"kind": "maintenance", "reason": "fans", "scope": "node", "node": node.pk}
    with timezone.override("Europe/Berlin"):
        settings.TIME_ZONE = "Europe/Berlin"
        day = data | {"start": "2027-10-31T02:30", "end": "2027-10-31T06:00"}
        _, text = post(desk, "manage-closure-new", day, status=200)
        assert "02:30 comes twice. The first one counts." in text
        day = data | {"start": "2027-03-28T02:30", "end": "2027-03-28T06:00"}
        _, text = post(desk, "manage-closure-new", day, status=422)
        assert "Choose 01:59 or earlier, or 03:00 or later." in text


def test_no_threshold_of_telemetry_can_be_set_to_nothing(desk) -> None:
    data = fields(desk, "telemetry")
    for name in (
        "intruder_after_seconds",
        "squatter_after_seconds",
        "zombie_memory_mib",
        "thermal_after_seconds",
        "closes_after_seconds",
        "least_samples",
        "warn_after_seconds",
    ):
        _, text = post(
            desk, "manage-policy-one", data | {name: 0}, "telemetry", status=422
        )
        words = (
            "Choose between" if name.endswith("_seconds") else "Enter a whole number"
        )
        assert words in text, name
    answer, _ = post(
        desk, "manage-policy-one", data | {"silent_after_seconds": 90}, "telemetry"
    )
    save = data | {
        "silent_after_seconds": 90,
        "save": 1,
        "reason": "fast nodes",
        "mark": answer.context["review"].mark,
    }
    post(desk, "manage-policy-one", save, "telemetry", status=200)
    assert TelemetryPolicy.current().silent_after_seconds == 90
    entry = AuditEntry.objects.get(subject="policy:telemetry")
    post(desk, "manage-policy-undo", {}, "telemetry", entry.pk, status=200)
    assert TelemetryPolicy.current().silent_after_seconds == 600


@pytest.mark.once
def test_an_admin_sets_the_device_gate_of_a_node(desk, gpus) -> None:
    node = gpus[0].node
    _, text = post(desk, "manage-gate", {"mode": "watch"}, node.pk, status=200)
    assert "Saved. The node’s page shows when its gate has changed." in text
    assert f"/nodes/{node.name}/#device-gate" in text and "Pending" in text
    node.refresh_from_db()
    assert node.gate_mode == "watch"
    assert AuditEntry.objects.filter(verb="node.gate-watch").count() == 1
    _, text = post(desk, "manage-gate", {"mode": "watch"}, node.pk, status=200)
    assert "Nothing was changed." in text
    for wrong in ({}, {"mode": "shut"}):
        _, text = post(desk, "manage-gate", wrong, node.pk, status=200)
        assert "Choose a mode from the list." in text
    post(desk, "manage-gate", {"mode": "open"}, 0, status=404)


def test_the_names_in_a_gate_report_are_for_admins(desk, alice, gpus) -> None:
    node = gpus[0].node
    page = reverse("node", args=[node.name])
    assert "device-gate" not in desk.get(page).content.decode()
    node.gate_mode, node.gate_state = "gated", "failed"
    node.gate_reason = "an ordinary user could open <b>it</b>"
    node.gate_report = {
        "refusals": [[1001, "eve<i>", 7]],
        "uncovered": ["mallory (docker)"],
        "unknown": ["zoe"],
    }
    node.save()
    text = desk.get(page).content.decode()
    for words in ("could open &lt;b&gt;it", "eve&lt;i&gt;", "mallory (docker)", "zoe"):
        assert words in text
    desk.force_login(alice)
    text = desk.get(page).content.decode()
    assert "<dt>Device gate</dt><dd>failed</dd>" in text
    for words in ("eve", "mallory", "zoe", "could open"):
        assert words not in text
