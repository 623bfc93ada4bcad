"""Book the Gpus that a person's processes use without a booking."""

from datetime import timedelta

import pytest
from django.utils import timezone

from reservations.models import AuditEntry, LedgerEntry, Notice, Reservation
from reservations.presence import adoption
from reservations.rules.booking_alerts import INTRUDER, OVERRUN, SQUATTER
from reservations.rules.decision_record import broken_rules, recompute, without_places
from reservations.rules.errors import GpuTaken, NotFound
from reservations.rules.lifecycle import Kind, State
from reservations.store.booking_facts import site_policy
from reservations.tick import tick
from telemetry.alerts.service import open_alert
from telemetry.models import Alert, Pool
from tests.factories import make_gpus, make_membership, make_node, make_reservation

pytestmark = pytest.mark.django_db(transaction=True)
HOUR = timedelta(hours=1)


@pytest.fixture
def now():
    return timezone.now().replace(microsecond=0)


@pytest.fixture
def hour(now):
    """The next full hour."""
    return now.replace(minute=0, second=0) + HOUR


@pytest.fixture
def gpus(alice):
    return make_gpus(3, make_node("node1"))


def seen(gpu, *logins, now, rule=SQUATTER):
    """The samples of a node show processes of these logins."""
    open_alert(rule=rule, gpu_id=gpu.pk, now=now, detail={"users": list(logins)})


def adopt(user, now, **more):
    return adoption.adopt(user=user, node="node1", hours=2, now=now, **more)


@pytest.mark.once
def test_what_runs_becomes_a_flex_booking_that_is_charged(alice, gpus, now):
    alice.unix_user = "al"
    alice.save()
    seen(gpus[0], "al", now=now)
    seen(gpus[2], "al", "eve", now=now, rule=OVERRUN)
    made = adopt(alice, now)
    held = set(made.allocations.values_list("gpu_id", flat=True))
    assert held == {gpus[0].pk, gpus[2].pk}
    assert (made.kind, made.state) == (Kind.FLEX, State.ACTIVE)
    assert made.start == now
    assert now + 2 * HOUR <= made.end < now + 3 * HOUR
    hold = LedgerEntry.objects.get(reservation=made)
    assert abs(hold.gpu_seconds) == made.cost_gpu_seconds > 0
    assert not Alert.objects.open().exists()
    audit = AuditEntry.objects.get(verb="reservation.adopted")
    assert audit.actor_id == alice.pk and audit.subject == f"reservation:{made.pk}"
    # It stays flex where the quota would allow firm, and its record says why.
    assert broken_rules(made.decision) == []
    again = recompute(made.decision["inputs"], site_policy())
    assert again == without_places(made.decision)
    with pytest.raises(NotFound):
        adopt(alice, now)


def test_nobody_books_for_another_person_or_where_nothing_runs(alice, bob, gpus, now):
    seen(gpus[0], "bob", now=now)
    seen(gpus[1], "alice", now=now, rule=INTRUDER)
    with pytest.raises(NotFound):
        adopt(alice, now)
    # Her portal name is another person's login on the nodes.
    alice.unix_user = "al"
    alice.save()
    seen(gpus[2], "alice", now=now)
    assert adoption.unbooked_use(alice) == ()
    # She chose the portal name at an identity provider.
    alice.unix_user = ""
    alice.save()
    assert adoption.unbooked_use(alice)
    alice.name_from_provider = True
    alice.save()
    assert adoption.unbooked_use(alice) == ()
    with pytest.raises(NotFound):
        adoption.adopt(user=bob, node="node2", hours=1, now=now)
    assert not Reservation.objects.exists()


def test_the_ordinary_rules_refuse_and_the_alert_stays_open(
    client, alice, bob, gpus, now, hour
):
    seen(gpus[0], "alice", now=now)
    other = make_reservation(bob, [gpus[0]], start=hour, end=hour + HOUR)
    with pytest.raises(GpuTaken) as refused:
        adopt(alice, now)
    assert refused.value.next_slot is not None
    client.force_login(alice)
    page = client.post("/alerts/adopt/", {"node": "node1", "hours": "2"})
    assert page.status_code == 409
    assert "node1:0 is taken" in page.content.decode()
    assert "This works: node1:" in page.content.decode()
    assert Alert.objects.open().count() == 1
    assert list(Reservation.objects.all()) == [other]
    assert not AuditEntry.objects.filter(verb="reservation.adopted").exists()


def test_the_operator_switches_it_off_for_a_pool(alice, gpus, now):
    seen(gpus[0], "alice", now=now)
    Pool.objects.update(may_adopt=False)
    with pytest.raises(NotFound):
        adopt(alice, now)
    tick(now)
    assert not Notice.objects.filter(kind="unbooked_use").exists()


def test_one_notice_tells_of_the_use_and_leads_to_the_button(alice, bob, gpus, now):
    seen(gpus[0], "alice", "job 7", "nobody-here", now=now)
    seen(gpus[1], "alice", now=now)
    bob.is_active = False
    bob.save()
    seen(gpus[2], "bob", now=now)
    for later in range(3):
        tick(now + timedelta(seconds=later))
    told = Notice.objects.get(kind="unbooked_use")
    assert told.user == alice
    assert told.detail == {"where": "node1:0, node1:1", "url": "/alerts/#adopt"}


@pytest.mark.once
def test_the_page_offers_one_click_and_shows_a_refusal(client, alice, bob, gpus, now):
    seen(gpus[0], "alice", now=now)
    client.force_login(bob)
    assert 'id="adopt"' not in client.get("/alerts/").content.decode()
    answer = client.post("/alerts/adopt/", {"node": "node1", "hours": "2"})
    assert answer.status_code == 404 and not Reservation.objects.exists()
    client.force_login(alice)
    assert "Book what I am using" in client.get("/alerts/").content.decode()
    assert client.get("/alerts/adopt/").status_code == 405
    for wrong in ("0", "25", "x", "", "1e9"):
        answer = client.post("/alerts/adopt/", {"node": "node1", "hours": wrong})
        assert answer.status_code == 422, wrong
        assert 'class="error"' in answer.content.decode()
    second = make_membership(alice, "robotics")
    answer = client.post("/alerts/adopt/", {"node": "node1", "hours": "2"})
    assert answer.status_code == 409, "it must name who pays"
    foreign = bob.memberships.get().pk
    fields = {"node": "node1", "hours": "2"}
    answer = client.post("/alerts/adopt/", fields | {"membership": foreign})
    assert answer.status_code == 422
    answer = client.post("/alerts/adopt/", fields | {"membership": second.pk})
    made = Reservation.objects.get()
    assert answer["Location"] == f"/reservations/{made.pk}/"
    assert made.membership == second
    page = client.get(answer["Location"]).content.decode()
    assert "booked for processes that ran without a booking" in page
    assert 'id="adopt"' not in client.get("/alerts/").content.decode()
