"""Unknown is a state of its own: never zero, never free, never a pool of its own."""

import json
import threading
import time
from datetime import timedelta

import pytest
import redis
from django.utils import timezone

from telemetry.alerts.service import (
    close_alert,
    judge_channels,
    mark_silent_nodes,
    open_alert,
)
from telemetry.inventory.queries import ClusterSnapshot, load_cluster, read_live
from telemetry.inventory.roster import record_roster
from telemetry.inventory.xid_counts import count_xids, judge_xids
from telemetry.models import Alert, Gpu, Node, Pool, TelemetryPolicy
from telemetry.protocol.frame import FrameRow
from telemetry.protocol.gpu_state import GpuState
from telemetry.protocol.hardware import NodeInfo
from telemetry.protocol.reading import XidEvent
from telemetry.protocol.trouble import NodeTrouble, TroubleState
from telemetry.rules.alert_rules import (
    CHANNEL,
    CLAIMED_ELSEWHERE,
    CLOCK,
    DRIVER,
    LOST,
    NEW_GPU,
    SILENT,
    XID_CRITICAL,
)
from tests.factories import GIB, make_gpu, make_node, make_user
from tests.telemetry.ingest.stepped import Stepped
from tests.telemetry.messages import gpu_info, reading, roster, sample, send

pytestmark = pytest.mark.django_db


# --- what a driver says that cannot be true -----------------------


def test_zeroes_that_cannot_be_true_are_unknown(make_probe):
    probe = make_probe(1, model="a100")
    probe.sim.set(
        "gpu 0", mem_total="0", temp="0", power="0", clock_sm="0", clock_mem="0"
    )
    info = probe.open()
    assert info.gpus[0].memory_total_bytes == 0  # as the roster says "unknown"
    (gpu,) = probe.read().gpus
    assert (gpu.temperature_celsius, gpu.power_watts) == (None, None)
    assert (gpu.sm_clock_mhz, gpu.memory_clock_mhz) == (None, None)
    assert (gpu.memory_total_bytes, gpu.memory_used_bytes) == (None, None)


def test_two_boards_never_have_one_number(make_probe):
    probe = make_probe(3)
    first = probe.open()
    probe.sim.set("gpu 0", present="no")
    probe.change(driver_generation="2")
    probe.read()
    probe.ask("later 30")
    probe.ask("mend")
    info = probe.ask("info")
    numbers = {gpu["uuid"]: gpu["index"] for gpu in info["gpus"]}
    assert set(numbers) == {gpu.uuid for gpu in first.gpus}
    assert len(set(numbers.values())) == 3


# --- memory that is not known -----------------------


def record(node: Node, *gpus: dict, now=None) -> None:
    message = json.dumps(roster(*gpus))
    info = NodeInfo.from_message(message, node=node.name)
    record_roster(info=info, now=now or timezone.now())


def test_a_card_without_its_memory_keeps_what_was_known_and_its_pool():
    node = make_node("node-a")
    known = gpu_info(
        "GPU-1",
        name="NVIDIA GeForce RTX 3090",
        gpu_class="RTX 3090 24GB",
        memory_total_bytes=24 * GIB,
    )
    record(node, known)
    record(node, known | {"memory_total_bytes": 0, "gpu_class": "RTX 3090"})
    gpu = Gpu.objects.get()
    assert gpu.memory_total_bytes == 24 * GIB
    assert gpu.pool.gpu_class == "RTX 3090 24GB"


def test_a_card_whose_memory_was_never_known_is_booked_by_nobody(client):
    node = make_node("node-a")
    known = gpu_info(
        "GPU-1",
        name="NVIDIA GeForce RTX 3090",
        gpu_class="RTX 3090 24GB",
        memory_total_bytes=24 * GIB,
    )
    unknown = known | {
        "uuid": "GPU-2",
        "memory_total_bytes": 0,
        "gpu_class": "RTX 3090",
    }
    record(node, known, unknown)
    assert Pool.objects.count() == 1
    assert [gpu.uuid for gpu in Gpu.objects.bookable()] == ["GPU-1"]
    tags = {tag["uuid"]: tag for tag in json.loads(load_cluster().roster)["gpus"]}
    assert tags["GPU-2"]["memory_total_bytes"] is None
    client.force_login(make_user("omar", is_staff=True, is_superuser=True))
    shown = client.get(f"/gpus/{Gpu.objects.get(uuid='GPU-2').pk}/").content.decode()
    assert "<dd>unknown</dd>" in shown
    assert "0 GiB" not in shown
    record(node, known, known | {"uuid": "GPU-2"})
    assert Gpu.objects.get(uuid="GPU-2").memory_total_bytes == 24 * GIB


# --- split cards -----------------------


def test_a_split_card_reads_mig_and_its_instance_knows_its_place(redis_client):
    node = make_node("node-a")
    gpu = make_gpu(node, mig=True)
    ingest = Stepped(redis_client, judge=lambda *_: GpuState.UNKNOWN)
    send(redis_client, "raw.node-a", sample(reading(gpu.uuid, util_pct=None)))
    (row,) = ingest.round().rows
    assert row.state is GpuState.MIG


def test_an_instance_is_told_with_its_number(make_probe):
    probe = make_probe(1, model="h100")
    probe.sim.set("gpu 0", mig="on")
    probe.sim.add("gpu 0", "mig_device", "1g.10gb used:2GiB")
    probe.sim.add("gpu 0", "mig_device", "2g.20gb used:3GiB")
    info = probe.open()
    numbers = [gpu.mig_instance for gpu in info.gpus[1:]]
    assert None not in numbers
    assert len(set(numbers)) == 2


# --- one alert per cause -----------------------


class Clock:
    """Seconds that a test lets pass, and the ingest that runs by them."""

    def __init__(self, client: redis.Redis) -> None:
        self.client, self.skip = client, 0.0
        self.made = Stepped(
            client,
            steady=lambda: time.monotonic() + self.skip,
            ahead=lambda: self.skip,
        )

    def second(self, *readings: dict, trouble: NodeTrouble | None = None) -> None:
        self.skip += 1
        at = time.time() + self.skip
        if trouble is not None:
            send(self.client, "raw.node-a", trouble.to_message(), at=at)
        send(self.client, "raw.node-a", sample(*readings, at=at), at=at)
        self.made.round()


def open_rules() -> list[tuple[str, str]]:
    return sorted(Alert.objects.open().values_list("rule", "node__name"), key=str)


@pytest.mark.parametrize("said", [True, False])
def test_a_driver_that_is_gone_is_one_alert_of_its_node(redis_client, said):
    gpus = [make_gpu(make_node("node-a"))]
    gpus += [make_gpu(gpus[0].node) for _ in range(3)]
    clock = Clock(redis_client)
    trouble = None
    if said:
        why = "driver and library versions differ"
        trouble = NodeTrouble("node-a", TroubleState.RELOADING, why, time.time())
    for _ in range(10):
        clock.second(*(reading(x.uuid, state="error") for x in gpus), trouble=trouble)
    assert open_rules() == [(DRIVER, "node-a")]
    reason = Alert.objects.open().get().detail["reason"]
    assert reason == (
        "driver and library versions differ" if said else "none of 4 GPUs answers"
    )
    # They are out of service all the same, and come back with the driver.
    assert Gpu.objects.filter(lost=True).count() == 4
    well = NodeTrouble("node-a", TroubleState.OK, "", time.time())
    for _ in range(25):
        clock.second(*(reading(x.uuid) for x in gpus), trouble=well)
    assert open_rules() == []
    assert not Gpu.objects.filter(lost=True).exists()


def test_one_dead_gpu_of_several_is_its_own_alert(redis_client):
    dead, well = make_gpu(make_node("node-a")), None
    well = make_gpu(dead.node)
    clock = Clock(redis_client)
    for _ in range(10):
        clock.second(reading(dead.uuid, state="lost"), reading(well.uuid))
    assert open_rules() == [(LOST, None)]


@pytest.mark.once
@pytest.mark.parametrize("first", ["xid", "lost"])
def test_a_gpu_off_the_bus_is_one_alert_whoever_comes_first(redis_client, first):
    dead = make_gpu(make_node("node-a"))
    well = make_gpu(dead.node)
    clock = Clock(redis_client)
    xid = [{"code": 79, "at": time.time()}]
    if first == "xid":
        clock.second(reading(dead.uuid, xids=xid), reading(well.uuid))
    for _ in range(10):
        clock.second(reading(dead.uuid, state="lost"), reading(well.uuid))
    if first == "lost":
        clock.second(reading(dead.uuid, state="lost", xids=xid), reading(well.uuid))
    judge_xids(now=timezone.now())
    rule = XID_CRITICAL if first == "xid" else LOST
    assert [found for found, _node in open_rules()] == [rule]
    dead.refresh_from_db()
    assert dead.lost


def test_a_node_whose_driver_is_told_is_not_told_as_silent_too():
    now = timezone.now()
    node = make_node("node-a", last_seen_at=now - timedelta(hours=1))
    make_gpu(node)
    open_alert(rule=DRIVER, node_id=node.pk, now=now)
    mark_silent_nodes(now=now)
    assert open_rules() == [(DRIVER, "node-a")]
    close_alert(rule=DRIVER, node_id=node.pk, now=now)
    mark_silent_nodes(now=now)
    assert open_rules() == [(SILENT, "node-a")]


def test_another_xid_of_the_same_gpu_is_told_beside(redis_client):
    gpu = make_gpu()
    now = timezone.now()
    open_alert(rule=LOST, gpu_id=gpu.pk, now=now)
    events = [XidEvent(79, now.timestamp()), XidEvent(48, now.timestamp())]
    count_xids(events={gpu.pk: events}, now=now)
    told = Alert.objects.open().get(rule=XID_CRITICAL).detail["xids"]
    assert [xid["code"] for xid in told] == [48]


# --- a clock, a token -----------------------


def test_a_clock_that_is_off_is_told_to_the_operator(redis_client):
    gpu = make_gpu(make_node("node-a"))
    clock = Clock(redis_client)
    for skew in (0.0, 7200.0):
        clock.skip += 1
        at = time.time() + clock.skip
        send(redis_client, "raw.node-a", sample(reading(gpu.uuid), at=at + skew), at=at)
        clock.made.round()
        assert [rule for rule, _ in open_rules()] == ([CLOCK] if skew else [])
    assert abs(Alert.objects.open().get().detail["skew_seconds"] - 7200) < 5


def test_a_node_that_cannot_show_itself_to_the_web_is_an_alert_of_its_own():
    now = timezone.now()
    seen = {"last_seen_at": now, "channel_at": now}
    make_node("well", channel_state="ok", **seen)
    make_node("before", **(seen | {"channel_at": None}))
    bad = make_node("node-a", channel_state="refused", channel_detail="401", **seen)
    late = now - timedelta(minutes=9)
    make_node("mute", channel_state="ok", **(seen | {"channel_at": late}))
    make_node("off", channel_state="refused", last_seen_at=late, channel_at=late)
    assert judge_channels(now=now) == (2, 0)
    assert open_rules() == [(CHANNEL, "mute"), (CHANNEL, "node-a")]
    bad.channel_state = "ok"
    bad.save()
    assert judge_channels(now=now) == (0, 1)


# --- a page that knows no Gpu for a moment -----------------------


def test_a_new_roster_and_its_frame_come_together(redis_client, valkey_url):
    """A reader never finds a roster that does not fit its frame."""
    gpu = make_gpu(make_node("node-a"))
    ingest = Stepped(redis_client).ingest
    one = load_cluster()
    gpu.maintenance = True
    gpu.save()
    two = load_cluster()
    assert one.roster_id != two.roster_id
    reader, stop = redis.Redis.from_url(valkey_url), threading.Event()
    empty: list[int] = []
    reads = 0

    def read() -> None:
        nonlocal reads
        while not stop.is_set():
            reads += 1
            if not read_live(reader)[1]:
                empty.append(reads)

    publish(ingest, one)
    thread = threading.Thread(target=read)
    thread.start()
    deadline = time.monotonic() + 120
    number = 0
    try:
        # On a busy machine the reader may get few turns in 600 rounds.
        while number < 600 or reads <= 100:
            assert thread.is_alive(), "the reader failed"
            assert time.monotonic() < deadline, "the reader gets no turn"
            publish(ingest, two if number % 2 else one)
            number += 1
    finally:
        stop.set()
        thread.join()
    assert reads > 100
    assert empty == []


def publish(ingest, cluster: ClusterSnapshot) -> None:
    ingest.intake.cluster = cluster
    rows = [(gpu, FrameRow(state=GpuState.FREE)) for gpu in cluster.gpus]
    ingest._publish(rows, timezone.now(), time.monotonic())


# --- Gpus that nobody expected -----------------------


def test_gpus_of_the_first_day_are_booked_and_later_ones_are_looked_at_first():
    now = timezone.now()
    node = make_node("node-a", enrolled_at=now - timedelta(hours=2))
    record(node, gpu_info("GPU-1"), now=now)
    later = now + timedelta(days=2)
    record(node, gpu_info("GPU-1"), gpu_info("GPU-2", 1), now=later)
    assert [gpu.uuid for gpu in Gpu.objects.bookable()] == ["GPU-1"]
    alert = Alert.objects.open().get()
    assert (alert.rule, alert.place) == (NEW_GPU, "node-a:1")
    Gpu.objects.update(new=False)
    record(node, gpu_info("GPU-1"), gpu_info("GPU-2", 1), now=later)
    assert not Alert.objects.open().exists()
    assert Gpu.objects.bookable().count() == 2


def test_a_site_may_take_them_at_once():
    TelemetryPolicy.current()
    TelemetryPolicy.objects.update(new_gpus_wait=False)
    node = make_node("node-a", enrolled_at=timezone.now() - timedelta(days=9))
    record(node, gpu_info("GPU-1"))
    assert Gpu.objects.bookable().count() == 1


def test_a_uuid_that_another_node_took_first_is_given_to_its_owner():
    squatter, owner = make_node("node-a"), make_node("node-b")
    record(squatter, gpu_info("GPU-1"))
    record(owner, gpu_info("GPU-1"))
    assert Alert.objects.open().get().rule == CLAIMED_ELSEWHERE
    # As the operator does in the admin: the card belongs to node-b.
    Gpu.objects.update(node=owner)
    record(owner, gpu_info("GPU-1"))
    assert not Alert.objects.open().exists()
    # And now the other one is the one that claims it.
    record(squatter, gpu_info("GPU-1"))
    assert Alert.objects.open().get().detail["claimed_by"] == "node-a"
