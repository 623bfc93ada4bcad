"""Replays of the site's own past: asked for, made, cancelled, exported."""

from datetime import timedelta

import pytest
from django.urls import reverse
from django.utils import timezone

from reservations.models import Account, AuditEntry, PolicyReplay
from reservations.reports.replay import service as replays
from reservations.reports.replay.trace import read_trace
from reservations.rules.lifecycle import State
from tests.factories import make_reservation
from tests.reservations.conftest import HOUR

QUESTION = {
    "days": 30,
    "counted_from": "start",
    "pool": "",
    "quota_gpu_seconds": 400,
    "half_life_seconds": 336,
    "freeze_seconds": 12,
    "firm_horizon_seconds": 336,
    "flex_horizon_seconds": 72,
}


@pytest.fixture
def past(lab, alice, carol):
    """Both want the same four Gpus in the same hour, day after day."""
    noon = timezone.now().replace(minute=0, second=0, microsecond=0)
    for day in range(2, 12):
        start = noon - timedelta(days=day)
        for user, state in ((alice, State.ENDED), (carol, State.DISPLACED)):
            make_reservation(
                user, lab.gpus, start, start + timedelta(hours=2), state=state
            )


@pytest.fixture
def sent(monkeypatch):
    """Names of the replays that were sent to the worker."""
    found = []
    monkeypatch.setattr("reservations.tasks.replay_past.delay", found.append)
    return found


def test_a_replay_is_asked_for_made_and_compared(past, omar, alice, client, sent):
    where = reverse("manage-replay")
    client.force_login(alice)
    assert client.get(where).status_code == 403
    client.force_login(omar)
    assert client.get(where).context["present"]["quota_gpu_seconds"] == 400
    bad = client.post(where, QUESTION | {"half_life_seconds": 1, "days": 11})
    assert bad.status_code == 422
    assert bad.context["form"].errors["days"]
    bad = client.post(where, QUESTION | {"half_life_seconds": 1})
    assert "is not between" in bad.context["form"].errors["half_life_seconds"][0]
    nlp, vision = (Account.objects.get(name=name) for name in ("nlp", "vision"))
    bad = client.post(where, QUESTION | {f"shares-{nlp.pk}": -1})
    assert bad.status_code == 422
    assert f"e-shares-{nlp.pk}" in bad.content.decode()
    edits = {f"shares-{nlp.pk}": 3, f"quota-{nlp.pk}": 2.5, f"quota-{vision.pk}": ""}
    found = client.get(where, {"accounts": "NL"}).context["accounts"].accounts
    assert found == [nlp]
    asked = client.post(where, QUESTION | {"quota_gpu_seconds": 0} | edits)
    row = PolicyReplay.objects.get()
    assert sent == [row.pk]
    assert asked.url == reverse("manage-replay-one", args=[row.pk])
    polled = f'data-url="{asked.url}"'.encode()
    assert polled in client.get(asked.url).content
    assert replays.make_replay(pk=row.pk, clock=timezone.now) == "done"
    assert replays.make_replay(pk=row.pk, clock=timezone.now) == "done"
    page = client.get(asked.url)
    row.refresh_from_db()
    assert (row.jobs, row.gpus, row.done_ratio) == (20, 4, 1.0)
    # Of the two that want the same hour, one waits two hours.
    assert page.context["figures"][0].before == pytest.approx(1.0)
    assert {bar.group for bar in page.context["groups"]} == {"vision", "nlp"}
    assert polled not in page.content
    assert row.edited["accounts"] == {"nlp": [3, 9000, 1000]}
    assert "1 → 3" in page.content.decode()
    assert {line.title for line in page.context["days"]} == {
        "GPUs in use",
        "GPUs waited for",
    }
    used = page.context["parts"][0]
    assert used.widths[0] == round(1000 * used.before)
    assert page.content.count(b"<polyline") == 4
    assert AuditEntry.objects.filter(verb="replay.asked").exists()


def test_open_replays_are_cancelled_overtaken_and_few(past, omar, client, sent):
    client.force_login(omar)
    for _ in range(replays.MOST_OPEN):
        client.post(reverse("manage-replay"), QUESTION)
    full = client.post(reverse("manage-replay"), QUESTION)
    assert "still run" in full.context["form"].non_field_errors()[0]
    first, second = PolicyReplay.objects.order_by("pk")
    client.post(reverse("manage-replay-cancel", args=[first.pk]))
    first.refresh_from_db()
    assert first.state == "cancelled"
    assert replays.make_replay(pk=first.pk, clock=timezone.now) == "cancelled"
    later = timezone.now() + replays.STALE + timedelta(seconds=1)
    assert replays.fail_stale(now=later) == 1
    second.refresh_from_db()
    assert second.state == "failed"


def test_what_is_cancelled_while_it_runs_or_takes_too_long_ends(
    past, omar, monkeypatch
):
    monkeypatch.setattr(replays, "TELL_SECONDS", 0.0)
    monkeypatch.setattr("reservations.reports.replay.engine.TELL_EVENTS", 1)
    span = replays.ReplayPeriod(
        timezone.now() - timedelta(days=30), timezone.now(), "start", None
    )
    fields = {name: QUESTION[name] * HOUR for name in replays.EDITABLE}

    def ask() -> PolicyReplay:
        return replays.ask_replay(
            user=omar, span=span, fields=fields, now=timezone.now()
        )

    row, read = ask(), replays.ReplayPeriod.trace
    with monkeypatch.context() as patched:
        patched.setattr(
            replays.ReplayPeriod,
            "trace",
            lambda self: (
                replays.cancel_replay(pk=row.pk, user=omar, now=timezone.now()),
                read(self),
            )[1],
        )
        assert replays.make_replay(pk=row.pk, clock=timezone.now) == "cancelled"
    monkeypatch.setattr(replays, "LIMIT_SECONDS", -1.0)
    row = ask()
    assert replays.make_replay(pk=row.pk, clock=timezone.now) == "failed"
    row.refresh_from_db()
    assert "took more than" in row.problem


@pytest.mark.once
def test_the_trace_is_read_back_by_the_command(past, omar, client):
    client.force_login(omar)
    answer = client.get(reverse("manage-replay-trace") + "?days=7&counted_from=start")
    jobs = read_trace(answer.content.decode().splitlines())
    assert len(jobs) == 12
    assert {(one.gpus, one.req_s, one.duration_s) for one in jobs} == {
        (4, 2 * HOUR, 2 * HOUR)
    }
    assert client.get(reverse("manage-replay-trace") + "?days=x").status_code == 302
