"""The list of Alerts: who sees which ones, the filters, and the operator's actions."""

import csv
import io
from datetime import UTC, datetime, timedelta

import pytest
from django.utils import timezone

from gpuportal.alerts.queries import calling_alerts, people_of, visible_alerts
from gpuportal.board.board_snapshot import viewer_of
from reservations.models import AuditEntry, SitePolicy
from reservations.rules import booking_alerts
from reservations.rules.lifecycle import State
from telemetry.alerts.process_responses import note_response
from telemetry.alerts.service import acknowledge_alert, close_alert, open_alert
from telemetry.inventory.xid_counts import judge_xids
from telemetry.models import Alert, XidCount
from telemetry.rules import alert_rules
from tests.factories import make_gpu, make_gpus, make_node, make_reservation

pytestmark = pytest.mark.django_db
NOW = datetime.now(UTC)
PEOPLE = {
    "users": ["bob"],
    "processes": [{"pid": 7, "user": "bob", "command": "python", "memory_bytes": 1}],
}
READING = {
    "at": NOW.timestamp(),
    "state": "ok",
    "util_pct": 3,
    "memory_used_bytes": 2**30,
    "processes": [{"pid": 7, "user": "bob"}],
    "process_count": 1,
}


def open_one(gpu, rule=booking_alerts.INTRUDER, **more) -> Alert:
    open_alert(rule=rule, gpu_id=gpu.pk, now=timezone.now(), **more)
    return Alert.objects.get(rule=rule, gpu=gpu, closed_at=None)


@pytest.fixture
def intruded(alice, bob):
    """Bob's process runs on Alice's Gpu."""
    gpu = make_gpu(make_node("node-a"))
    booked = make_reservation(alice, [gpu], state=State.ACTIVE)
    return open_one(
        gpu, reservation_id=booked.pk, detail=PEOPLE, readings=[READING] * 3
    )


class TestWhoSeesWhat:
    def test_operators_see_all_and_students_what_concerns_their_bookings(
        self, intruded, alice, bob, carol, omar
    ):
        other = open_one(make_gpu(), alert_rules.THERMAL)
        now = timezone.now()
        assert set(visible_alerts(omar, now)) == {intruded, other}
        assert set(visible_alerts(alice, now)) == {intruded}
        assert not visible_alerts(carol, now).exists()
        assert not visible_alerts(bob, now).exists()

    def test_a_broken_gpu_or_node_concerns_whoever_booked_it_for_later(
        self, alice, carol
    ):
        node = make_node("node-a")
        gpu = make_gpu(node)
        start = timezone.now() + timedelta(days=1)
        make_reservation(alice, [gpu], start, start + timedelta(hours=1))
        lost = open_one(gpu, alert_rules.LOST)
        open_alert(rule=alert_rules.WEDGED, node_id=node.pk, now=timezone.now())
        seen = visible_alerts(alice, timezone.now())
        assert set(seen) == {lost, Alert.objects.get(rule=alert_rules.WEDGED)}
        assert not visible_alerts(carol, timezone.now()).exists()

    def test_an_intruder_who_was_told_sees_it_and_a_dry_run_tells_nobody(
        self, intruded, bob
    ):
        step = {
            "alert": intruded,
            "step": "notify",
            "pid": 7,
            "process_started_at": 1.0,
            "uid": 1002,
            "login": "bob",
            "user_id": bob.pk,
            "nonce": "",
            "now": timezone.now(),
        }
        assert note_response(**step, dry_run=True)
        assert not visible_alerts(bob, timezone.now()).exists()
        assert note_response(**step, dry_run=False)
        assert note_response(**step, dry_run=False) is None
        assert set(visible_alerts(bob, timezone.now())) == {intruded}

    @pytest.mark.once
    def test_names_follow_the_sites_setting(self, intruded, alice, bob, client):
        client.force_login(alice)
        assert ">bob<" in client.get("/alerts/").content.decode()
        SitePolicy.current()
        SitePolicy.objects.update(names_visible=False)
        text = client.get("/alerts/").content.decode()
        assert "bob" not in text.replace("combobox", "")
        assert "1 person" in text
        hidden = viewer_of(bob, names_visible=False)
        assert people_of(intruded, hidden) == "you"

    def test_the_told_intruder_reads_a_banner_without_the_holders_name(
        self, intruded, bob, client
    ):
        SitePolicy.current()
        SitePolicy.objects.update(names_visible=False)
        note_response(
            alert=intruded,
            step="notify",
            pid=7,
            process_started_at=1.0,
            uid=1002,
            login="bob",
            user_id=bob.pk,
            dry_run=False,
            nonce="",
            now=timezone.now(),
        )
        client.force_login(bob)
        text = client.get("/").content.decode()
        assert "Your process runs on node-a:0" in text
        assert "Alice" not in client.get("/alerts/").content.decode()


class TestTheList:
    def test_filters_by_rule_severity_node_and_state_in_the_address(
        self, client, omar, intruded
    ):
        closed = open_one(make_gpu(make_node("node-b")), alert_rules.LOST)
        close_alert(rule=alert_rules.LOST, gpu_id=closed.gpu_id, now=timezone.now())
        client.force_login(omar)

        def shown(query: str) -> list[int]:
            page = client.get(f"/alerts/?{query}").context["page"]
            return [alert.pk for alert in page]

        assert shown("") == [intruded.pk]
        assert shown("state=closed") == [closed.pk]
        assert shown("state=all") == [closed.pk, intruded.pk]
        assert shown("state=all&severity=warning") == [intruded.pk]
        assert shown("state=all&rule=lost") == [closed.pk]
        assert shown("state=all&node=node-a") == [intruded.pk]
        assert shown("state=all&sort=newest") == [closed.pk, intruded.pk]
        assert shown("state=none-such&page=x&sort=y") == [intruded.pk]

    def test_pages_keep_the_filter_and_the_queries_stay_few(
        self, client, omar, django_assert_max_num_queries
    ):
        for gpu in make_gpus(30):
            open_one(gpu, alert_rules.THERMAL, readings=[READING])
        client.force_login(omar)
        client.get("/alerts/")
        with django_assert_max_num_queries(17):
            text = client.get("/alerts/?severity=warning").content.decode()
        assert "Page 1 of 2, 30 alerts" in text
        assert "?severity=warning&amp;page=2" in text

    def test_a_live_page_gets_the_list_alone(self, client, omar, intruded):
        client.force_login(omar)
        answer = client.get("/alerts/", headers={"X-Fragment": "alert-list"})
        text = answer.content.decode()
        assert "<html" not in text
        assert f'id="alert-{intruded.pk}"' in text

    def test_what_a_person_has_unfolded_stays_until_it_is_folded(
        self, client, alice, omar, intruded
    ):
        hidden = open_one(make_gpu(make_node("node-b")), alert_rules.LOST)
        closed_at = timezone.now()
        for alert in (intruded, hidden):
            close_alert(rule=alert.rule, gpu_id=alert.gpu_id, now=closed_at)

        def shown(query: str) -> str:
            return client.get(f"/alerts/?{query}").content.decode()

        unfolded = f"unfolded={intruded.pk}&unfolded={hidden.pk}&unfolded=x"
        client.force_login(omar)
        assert "No open alert" in shown("")
        text = shown(unfolded)
        assert f'id="alert-{intruded.pk}"' in text
        assert f'id="alert-{hidden.pk}"' in text
        assert "Acknowledge</button>" not in text
        # An address names only what its user may see.
        client.force_login(alice)
        text = shown(unfolded)
        assert f'id="alert-{intruded.pk}"' in text
        assert f'id="alert-{hidden.pk}"' not in text

    def test_csv_has_a_row_each_and_no_formula(self, client, omar, intruded):
        Alert.objects.update(detail={"users": ["=cmd"]})
        client.force_login(omar)
        answer = client.get("/alerts/?format=csv")
        rows = list(csv.DictReader(io.StringIO(answer.content.decode())))
        assert [(row["rule"], row["place"]) for row in rows] == [
            ("intruder", "node-a:0")
        ]
        assert rows[0]["facts"] == "Running: =cmd"

    def test_an_empty_list_teaches(self, client, alice, omar):
        for user, words in ((alice, "No alert for you"), (omar, "No open alert")):
            client.force_login(user)
            assert words in client.get("/alerts/").content.decode()
            filtered = client.get("/alerts/?severity=critical").content.decode()
            assert "No alert matches" in filtered


class TestActs:
    def act(self, client, alert: Alert, **data: str):
        return client.post(f"/alerts/{alert.pk}/", {"back": "state=all", **data})

    def test_an_operator_acknowledges_and_it_stops_calling(
        self, client, omar, intruded
    ):
        client.force_login(omar)
        answer = self.act(client, intruded, act="acknowledge")
        assert answer.url == f"/alerts/?state=all#alert-{intruded.pk}"
        intruded.refresh_from_db()
        assert intruded.acknowledged_by == "omar"
        assert not calling_alerts(omar, timezone.now()).exists()
        entry = AuditEntry.objects.get(subject=f"alert:{intruded.pk}")
        assert (entry.actor, entry.verb) == (omar, "alert.acknowledged")
        self.act(client, intruded, act="wake")
        assert calling_alerts(omar, timezone.now()).exists()

    def test_a_snooze_ends_by_itself(self, client, omar, intruded):
        client.force_login(omar)
        self.act(client, intruded, hours="8")
        intruded.refresh_from_db()
        left = intruded.snoozed_until - timezone.now()
        assert timedelta(hours=7.9) < left <= timedelta(hours=8)
        assert intruded.snoozed(timezone.now())
        later = timezone.now() + timedelta(hours=9)
        assert calling_alerts(omar, later).exists()

    @pytest.mark.once
    @pytest.mark.parametrize("until", ["2001-01-01T00:00", "2999-01-01T00:00", "soon"])
    def test_a_date_that_cannot_be_meant_changes_nothing(
        self, client, omar, intruded, until
    ):
        client.force_login(omar)
        self.act(client, intruded, act="until", until=until)
        intruded.refresh_from_db()
        assert intruded.snoozed_until is None
        assert not AuditEntry.objects.exists()

    def test_a_date_is_read_in_the_sites_zone(self, client, omar, intruded):
        client.force_login(omar)
        until = timezone.localtime(timezone.now() + timedelta(days=2))
        self.act(client, intruded, act="until", until=f"{until:%Y-%m-%dT%H:%M}")
        intruded.refresh_from_db()
        assert intruded.snoozed_until == until.replace(second=0, microsecond=0)

    @pytest.mark.once
    def test_students_may_not_and_a_get_does_nothing(self, client, alice, intruded):
        client.force_login(alice)
        assert self.act(client, intruded, act="acknowledge").status_code == 403
        assert client.get(f"/alerts/{intruded.pk}/").status_code == 405
        intruded.refresh_from_db()
        assert intruded.acknowledged_at is None

    def test_an_alert_that_is_gone_is_not_found(self, client, omar):
        client.force_login(omar)
        answer = client.post("/alerts/999/", {"act": "acknowledge"})
        assert answer.status_code == 404

    def test_what_was_said_stays_when_the_cause_comes_back_soon(self, intruded):
        now = timezone.now()
        acknowledge_alert(alert_id=intruded.pk, by="omar", now=now)
        for _ in range(3):
            close_alert(rule=booking_alerts.INTRUDER, gpu_id=intruded.gpu_id, now=now)
            open_one(intruded.gpu, reservation_id=intruded.reservation_id)
        (only,) = Alert.objects.all()
        assert (only.openings, only.acknowledged_by) == (4, "omar")


class TestXids:
    def test_the_operator_clears_them_on_the_gpus_page(self, client, omar, alice):
        gpu = make_gpu()
        now = timezone.now()
        for code in (79, 13):
            XidCount.objects.create(
                gpu=gpu, code=code, count=2, first_at=now, last_at=now
            )
        judge_xids(now=now)
        assert Alert.objects.open().get().rule == alert_rules.XID_CRITICAL
        client.force_login(alice)
        assert client.post(f"/gpus/{gpu.pk}/xids/clear/").status_code == 403
        client.force_login(omar)
        assert "Clear XID 79" in client.get(f"/gpus/{gpu.pk}/").content.decode()
        client.post(f"/gpus/{gpu.pk}/xids/clear/", {"code": "79"})
        assert not Alert.objects.open().exists()
        assert not XidCount.objects.get(code=79).is_uncleared
        assert XidCount.objects.get(code=13).is_uncleared
        entry = AuditEntry.objects.get(verb="gpu.xids-cleared")
        assert (entry.actor, entry.detail["code"]) == (omar, 79)
