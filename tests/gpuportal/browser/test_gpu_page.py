"""The page of one Gpu: its facts, its present processes, its last day."""

import json
import math
import time
from datetime import timedelta

import pytest
from django.utils import timezone
from playwright.sync_api import Page, expect

from telemetry.alerts.service import open_alert
from telemetry.history.minute_store import record_minutes
from telemetry.live import broadcast
from telemetry.live.broadcast import Detail
from telemetry.protocol.gpu_state import GpuState
from telemetry.rules.rollup import MinuteTotals
from tests.factories import make_reservation
from tests.gpuportal.browser.conftest import GIB, LiveCluster
from tests.pages import check_looks
from tests.telemetry.messages import process


def store_day(gpu_id: int) -> None:
    """A day of minutes with a hole of three hours."""
    now = int(time.time()) // 60 * 60
    totals = {}
    for ago in range(1, 24 * 60):
        if 600 < ago < 780:
            continue
        util = 50 + 45 * math.sin(ago / 90)
        totals[gpu_id, now - ago * 60] = MinuteTotals(
            n=60,
            util_n=60,
            util_sum_pct=60 * util,
            util_min_pct=max(0.0, util - 8),
            util_max_pct=min(100.0, util + 8),
            memory_n=60,
            memory_sum_bytes=60 * 30 * GIB,
            memory_max_bytes=31 * GIB,
            temperature_max_celsius=60 + int(util / 8),
            power_n=60,
            power_sum_watts=60 * (80 + 2 * util),
        )
    record_minutes(totals=totals)


def publish_detail(live_cluster: LiveCluster, *processes: dict) -> None:
    detail: Detail = {
        "node": "node-a",
        "at": time.time(),
        "load1": 0.5,
        "gpus": {
            live_cluster.gpus[0].uuid: {
                "processes": list(processes),  # type: ignore[typeddict-item]
                "throttle": ["sw_power_cap"],
                "memory_reserved_bytes": GIB // 2,
            }
        },
    }
    with live_cluster.client.pipeline() as pipe:
        broadcast.publish_detail(pipe, "node-a", json.dumps(detail).encode())
        pipe.execute()


def two_processes() -> list[dict]:
    return [process(), process(4300, user="bob", command="x --key a")]


@pytest.fixture
def opened(page: Page, live_asgi: str, live_cluster: LiveCluster, alice, sign_in):
    """Alice holds the first Gpu and has its page open."""
    gpu = live_cluster.gpus[0]
    now = timezone.now()
    began = now - timedelta(hours=3)
    make_reservation(alice, [gpu], began, now + timedelta(hours=2), state="active")
    open_alert(rule="intruder", gpu_id=gpu.pk, now=now)
    store_day(gpu.pk)
    live_cluster.set(0, state=GpuState.BUSY, util_pct=93, memory_used_mib=31 * 1024)

    def go() -> None:
        sign_in(alice)
        publish_detail(live_cluster, *two_processes())
        page.goto(f"{live_asgi}/gpus/{gpu.pk}/")
        expect(page.locator("#gpu-state")).to_have_text("busy")

    return go


def test_it_shows_now_processes_and_the_last_day_and_is_accessible(
    page: Page, live_cluster: LiveCluster, opened, subtests: pytest.Subtests
):
    opened()
    with subtests.test("it is accessible and fits"):
        expect(page.locator(".history-chart canvas")).to_have_count(4)
        check_looks(page)
    with subtests.test("it shows now, processes and the last day"):
        # On a busy machine axe-core may look until the first ones are too old.
        publish_detail(live_cluster, *two_processes())
        it_shows_now_processes_and_the_last_day(page, live_cluster)


def it_shows_now_processes_and_the_last_day(
    page: Page, live_cluster: LiveCluster
) -> None:
    expect(page.locator(".gpu-util")).to_have_text("93")
    expect(page.locator("#gpu-holder")).to_contain_text("You, Vision until")
    rows = page.locator("#gpu-processes tr")
    expect(rows).to_have_count(2)
    expect(rows.nth(0)).to_contain_text("train.py --lr 0.1")
    expect(rows.nth(1)).to_contain_text("bob")
    expect(rows.nth(1)).not_to_contain_text("--key")
    expect(page.locator(".history-chart canvas")).to_have_count(4)
    booking = page.locator("#gpu-booking")
    expect(booking).to_contain_text("Energy of this booking")
    expect(booking).to_contain_text("Mean utilization")
    live_cluster.set(0, util_pct=12)
    expect(page.locator(".gpu-util")).to_have_text("12")
    publish_detail(live_cluster)
    expect(page.locator("#gpu-no-process")).to_be_visible()
    expect(rows).to_have_count(0)
