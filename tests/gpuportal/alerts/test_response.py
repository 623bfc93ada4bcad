"""The escalation from end to end: a real process of another user is judged, warned and
stopped.
"""

import json
import os
import subprocess
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.utils import timezone

from gpuportal.alerts import response as respond
from gpuportal.alerts.broken_gpus import judge_broken
from gpuportal.alerts.calendar_judge import CalendarJudge
from gpuportal.alerts.response import Responder, record_fact
from placement.agent.command_handler import OrderDesk
from placement.agent.process.enforcement import Enforcer
from placement.protocol import signing
from reservations.models import AuditEntry, SitePolicy
from reservations.rules import booking_alerts
from reservations.rules.lifecycle import State
from telemetry.agent.sampler import make_probe
from telemetry.agent.simulated_probe import write_claim
from telemetry.agent.simulated_processes import drop_claim
from telemetry.alerts.service import (
    acknowledge_alert,
    close_alert,
    open_alert,
    wake_alert,
)
from telemetry.models import Alert, Gpu, Pool, Response, TelemetryPolicy
from telemetry.protocol.hardware import Isolation
from telemetry.rules import alert_rules
from tests.factories import make_gpu, make_node, make_reservation
from tests.placement.nodes import make_settings
from tests.telemetry.agent.test_simulated_probe import scripted_gpu

pytestmark = pytest.mark.django_db
IS_ROOT = os.geteuid() == 0
SPARE_UID = 54_321 if IS_ROOT else os.geteuid()


@pytest.fixture
def intruder() -> Iterator[subprocess.Popen[bytes]]:
    """A process of a user that exists on no machine."""
    child = subprocess.Popen(
        ["/bin/sleep", "600"], user=SPARE_UID if IS_ROOT else None, cwd="/"
    )
    yield child
    child.kill()
    child.wait()


class Lab:
    """One node with one simulated Gpu, its judge, its escalation and its enforcer."""

    def __init__(self, folder: Any, valkey_url: str, pid: int, holder: Any) -> None:
        self.settings = make_settings(folder, redis_url=valkey_url)
        assert self.settings.sim_dir is not None
        self.settings.sim_dir.mkdir()
        script = {"epoch": 0, "gpus": [scripted_gpu(0)], "actors": []}
        (self.settings.sim_dir / "node1.json").write_text(json.dumps(script))
        self.claim(pid)
        self.gpu = make_gpu(make_node("node1"), uuid="GPU-0")
        self.booked = make_reservation(holder, [self.gpu], state=State.ACTIVE)
        self.judge = CalendarJudge()
        self.judge.refresh(timezone.now())
        self.responder = Responder(self.judge, leads=lambda: True)
        self.sent: list[tuple[str, str]] = []
        self.start = timezone.now()
        self.second = 0
        self.probe = make_probe(
            "simulated",
            node="node1",
            state_dir=self.settings.sim_dir,
            node_dir=self.settings.node_dir,
            isolation=Isolation.NONE,
        )

    def claim(self, pid: int) -> None:
        """Put a process on the Gpu, by a name that /proc cannot give."""
        write_claim(
            self.settings.sim_dir,
            "node1",
            pid=pid,
            gpu="GPU-0",
            memory_bytes=2**32,
            util_pct=90,
            user="bob",
        )

    @property
    def now(self) -> datetime:
        return self.start + timedelta(seconds=self.second)

    def look(self, seconds: int, *, every: int = 1) -> None:
        """Sample, judge, store the Alert, and let the escalation look."""
        for _ in range(0, seconds, every):
            at = time.time()
            self.probe.begin(at)
            (reading,) = self.probe.read(at).gpus
            self.judge.judge(self.gpu.pk, reading, 0.2, self.now)
            for found in self.judge.findings(self.gpu.pk):
                open_alert(
                    rule=found.rule,
                    gpu_id=self.gpu.pk,
                    now=self.now,
                    detail=found.detail,
                    reservation_id=found.reservation_id,
                    readings=found.trail.facts() if found.trail else None,
                )
            self.responder.run_round(self.now + timedelta(seconds=0.1))
            self.second += every

    def carry(self) -> list[str]:
        """Pass the signed commands to the node and its facts back. Return the
        outcomes.
        """
        desk = OrderDesk(self.settings, publish=self.hear)
        # The person who runs the tests gets no warnings on their own terminals.
        enforcer = Enforcer(self.settings, write=lambda _uid, _text: 0)
        self.heard = []
        for payload, signature in self.sent:
            assert desk.take(payload, signature)
        self.sent.clear()
        deadline = time.monotonic() + 60
        while list(enforcer.folder.glob("*.json")):
            assert time.monotonic() < deadline
            enforcer.step(time.time(), self.hear)
            time.sleep(0.05)
        return self.heard

    def hear(self, fact: dict[str, Any]) -> bool:
        assert record_fact("node1", json.loads(json.dumps(fact)), timezone.now())
        self.heard.append(fact["outcome"])
        return True


@pytest.fixture
def lab(tmp_path, valkey_url, intruder, alice, bob, monkeypatch) -> Iterator[Lab]:
    made = Lab(tmp_path, valkey_url, intruder.pid, alice)

    def keep(order, *, now):
        made.sent.append((order.payload(), signing.sign(order.payload())))
        return True

    monkeypatch.setattr(respond, "send_process_order", keep)
    yield made
    made.probe.close()


def allow(lab: Lab, response: str, *, dry_run: bool) -> None:
    Pool.objects.filter(pk=lab.gpu.pool_id).update(
        response=response, response_dry_run=dry_run
    )
    policy = TelemetryPolicy.current()
    policy.warn_after_seconds, policy.stop_after_seconds = 6, 12
    policy.save()
    lab.judge.refresh(timezone.now())


def verbs() -> list[str]:
    rows = AuditEntry.objects.filter(verb__startswith="response.").order_by("pk")
    return list(rows.values_list("verb", flat=True))


def test_the_intruder_is_told_warned_and_stopped_and_each_step_is_audited(
    lab: Lab, intruder, bob
):
    allow(lab, "stop", dry_run=False)
    lab.look(6)
    assert verbs() == ["response.notify.done"]
    assert Response.objects.get().user_id == bob.pk
    lab.look(6)
    assert lab.carry() == ["no terminal"]
    assert intruder.poll() is None
    lab.look(8)
    assert lab.carry() == ["stopped"]
    assert intruder.wait(60) == -15
    assert verbs() == [
        "response.notify.done",
        "response.warn.ordered",
        "response.warn.no-terminal",
        "response.stop.ordered",
        "response.stop.stopped",
    ]
    entry = AuditEntry.objects.filter(verb="response.stop.ordered").get()
    assert entry.actor is None
    assert entry.detail["pid"] == intruder.pid
    assert entry.detail["uid"] == SPARE_UID
    assert entry.detail["holder"] == "alice"
    alert = Alert.objects.get(rule=booking_alerts.INTRUDER)
    assert 3 <= len(alert.readings) <= 10
    assert alert.readings[0]["processes"][0]["pid"] == intruder.pid


def test_a_dry_run_writes_what_it_would_do_and_does_nothing(lab: Lab, intruder):
    allow(lab, "stop", dry_run=True)
    lab.look(30)
    assert verbs() == [
        "response.notify.dry-run",
        "response.warn.dry-run",
        "response.stop.dry-run",
    ]
    assert lab.sent == []
    assert intruder.poll() is None


@pytest.mark.parametrize(
    ("response", "steps"),
    [("observe", []), ("notify", ["notify"]), ("warn", ["notify", "warn"])],
)
def test_a_pool_decides_how_far_it_goes(lab: Lab, response, steps):
    allow(lab, response, dry_run=False)
    lab.look(30)
    taken = Response.objects.order_by("pk").values_list("step", flat=True)
    assert list(taken) == steps


@pytest.mark.once
def test_a_snoozed_or_acknowledged_alert_holds_the_ladder(lab: Lab):
    allow(lab, "stop", dry_run=False)
    lab.look(6)
    alert = Alert.objects.get()
    acknowledge_alert(alert_id=alert.pk, by="omar", now=lab.now)
    lab.look(20)
    assert verbs() == ["response.notify.done"]
    wake_alert(alert_id=alert.pk)
    lab.look(2)
    assert verbs()[-1] == "response.warn.ordered"


@pytest.mark.once
def test_nothing_is_done_on_a_sample_that_got_old(lab: Lab):
    allow(lab, "stop", dry_run=False)
    lab.look(6)
    late = lab.now + timedelta(seconds=30)
    assert lab.responder.run_round(late) == 0


def test_the_holder_himself_is_never_looked_at(lab: Lab, alice):
    allow(lab, "stop", dry_run=False)
    alice.unix_user = "bob"
    alice.save()
    lab.judge._logins_at = None
    lab.judge.refresh(timezone.now())
    lab.look(30)
    assert not Alert.objects.filter(rule=booking_alerts.INTRUDER).exists()
    assert not Response.objects.exists()


def test_an_order_that_cannot_be_sent_is_taken_again_later(lab: Lab, monkeypatch):
    allow(lab, "warn", dry_run=False)
    monkeypatch.setattr(respond, "send_process_order", lambda _order, *, now: False)
    lab.look(12)
    assert "response.warn.not-sent" in verbs()
    assert not Response.objects.filter(step="warn").exists()
    monkeypatch.setattr(respond, "send_process_order", lambda _order, *, now: True)
    lab.look(1)
    assert Response.objects.filter(step="warn").count() == 1


@pytest.mark.once
def test_a_node_answers_its_own_orders_only_and_once(lab: Lab):
    allow(lab, "warn", dry_run=False)
    lab.look(12)
    nonce = Response.objects.get(step="warn").nonce
    fact = {
        "v": 1,
        "kind": "response",
        "nonce": nonce,
        "outcome": "warned",
        "at": 1.0,
        "reason": "",
    }
    now = timezone.now()
    make_node("node2")
    assert not record_fact("node2", fact, now)
    assert not record_fact("node1", fact | {"outcome": "wonderful"}, now)
    assert record_fact("node1", fact, now)
    assert not record_fact("node1", fact | {"outcome": "refused"}, now)
    assert Response.objects.get(step="warn").outcome == "warned"


def test_an_order_that_no_node_answers_is_given_up(lab: Lab):
    allow(lab, "warn", dry_run=False)
    lab.look(12)
    lab.second += 600
    lab.responder.run_round(lab.now)
    assert Response.objects.get(step="warn").outcome == "no answer"
    assert verbs()[-1] == "response.warn.no-answer"


def test_the_warning_names_the_holder_only_where_the_site_does(lab: Lab):
    allow(lab, "stop", dry_run=False)
    lab.look(12)
    row = Response.objects.select_related("alert").get(step="warn")
    (scene,) = lab.judge.scenes()
    gpu = Gpu.objects.get(pk=lab.gpu.pk)
    text = respond.warning(row, gpu, scene)
    assert f"your process {row.pid} runs on node1:0, which alice has booked" in text
    assert text.endswith("If it stays, the portal stops it.")
    SitePolicy.objects.update(names_visible=False)
    assert "alice" not in respond.warning(row, gpu, scene)


@pytest.mark.once
def test_a_scripted_process_of_a_simulated_gpu_gets_no_order(lab: Lab, intruder):
    allow(lab, "warn", dry_run=False)
    drop_claim(lab.settings.sim_dir, "node1", pid=intruder.pid)
    script = lab.settings.sim_dir / "node1.json"
    body = json.loads(script.read_text())
    body["actors"] = [
        {
            "gpu": "GPU-0",
            "from": time.time() - 9,
            "until": None,
            "user": "bob",
            "uid": 2001,
            "command": "python x.py",
            "memory_bytes": 2**32,
            "util_pct": 80,
            "pid": 40_007,
        }
    ]
    script.write_text(json.dumps(body))
    os.utime(script, (time.time() + 5, time.time() + 5))
    lab.look(12)
    assert lab.sent == []
    assert Response.objects.get(step="warn").outcome == "refused"


class TestBrokenWithBookings:
    def test_it_opens_for_a_broken_gpu_with_a_booking_and_closes_with_either(
        self, alice
    ):
        gpu, now = make_gpu(make_node("node-a")), timezone.now()
        start = now + timedelta(days=2)
        booked = make_reservation(alice, [gpu], start, start + timedelta(hours=1))
        assert judge_broken(now) == (0, 0)
        open_alert(rule=alert_rules.LOST, gpu_id=gpu.pk, now=now)
        assert judge_broken(now) == (1, 0)
        assert judge_broken(now) == (0, 0)
        found = Alert.objects.get(rule=booking_alerts.BROKEN_WITH_BOOKINGS)
        assert found.reservation_id == booked.pk
        assert found.detail["causes"] == ["lost"]
        close_alert(rule=alert_rules.LOST, gpu_id=gpu.pk, now=now)
        assert judge_broken(now) == (0, 1)

    def test_a_silent_node_breaks_all_its_gpus_and_a_warning_breaks_none(self, alice):
        node, now = make_node("node-a"), datetime.now(UTC)
        gpus = [make_gpu(node), make_gpu(node)]
        make_reservation(alice, gpus, now, now + timedelta(hours=1))
        open_alert(rule=alert_rules.THERMAL, gpu_id=gpus[0].pk, now=now)
        assert judge_broken(now) == (0, 0)
        open_alert(rule=alert_rules.SILENT, node_id=node.pk, now=now)
        assert judge_broken(now) == (2, 0)


def test_the_thread_looks_only_while_its_ingest_leads(alice, monkeypatch):
    import threading

    stop, looked, leads = threading.Event(), [], [False]
    responder = Responder(CalendarJudge(), leads=lambda: leads[0])
    monkeypatch.setattr(respond, "STEP_SECONDS", 0.01)
    monkeypatch.setattr(respond, "close_old_connections", lambda: None)
    monkeypatch.setattr(responder, "run_round", lambda now: looked.append(now))
    thread = threading.Thread(target=responder.run, args=(stop,))
    thread.start()
    time.sleep(0.1)
    assert not looked
    leads[0] = True
    deadline = time.monotonic() + 60
    while not looked and time.monotonic() < deadline:
        time.sleep(0.01)
    stop.set()
    thread.join(60)
    assert looked
