"""The board with GPUs that Slurm gives out."""

import re

from django.utils import timezone
from playwright.sync_api import Page, expect

from telemetry.live.broadcast import CALENDAR_CHANGED
from telemetry.models import Gpu, SlurmCluster
from telemetry.protocol.frame import FrameRow
from telemetry.protocol.gpu_state import GpuState
from telemetry.rules.slurm_use import SlurmUse
from telemetry.slurm.cluster_view import SlurmGpuView, SlurmNodeView
from telemetry.slurm.service import record_view
from tests.gpuportal.browser.conftest import LiveCluster


def test_gpus_of_slurm_have_holder_and_end_and_cannot_be_booked(
    page: Page, live_asgi: str, live_cluster: LiveCluster, alice, sign_in, settings
):
    settings.SLURM_CLUSTER = "lab"
    type(alice).objects.filter(pk=alice.pk).update(unix_user="ada")
    now = timezone.now()
    busy = SlurmGpuView(
        0,
        "a100",
        SlurmUse.BUSY,
        unix_user="ada",
        job_id=42,
        until=int(now.timestamp()) + 3600,
    )
    closed = SlurmGpuView(1, "a100", SlurmUse.CLOSED)
    # Before the other nodes by its name, and so in the frame.
    node = SlurmNodeView("gp1", (busy, closed), "new fans")
    record_view("lab", [node], version="22.05.8", now=now)
    live_cluster.rows[:0] = [
        FrameRow(state=GpuState.BUSY, age_seconds=12.0),
        FrameRow(state=GpuState.MAINTENANCE, age_seconds=12.0),
    ]
    live_cluster.send_roster()
    sign_in(alice)
    page.goto(live_asgi)
    held, other = Gpu.objects.filter(node__name="gp1").order_by("index")
    card = page.locator(f"#gpu-{held.pk}")
    expect(card.locator(".gpu-holder")).to_have_text("You")
    expect(card.locator(".gpu-next")).to_have_text(
        re.compile(r"^until (\w{3} )?\d\d:\d\d$")
    )
    expect(card.locator(".gpu-note")).to_have_text("Slurm job 42")
    expect(card.locator(".gpu-mine")).to_be_hidden()
    expect(card.locator(".gpu-util")).to_be_hidden()
    expect(card.get_by_role("link", name="Book")).to_have_count(0)
    note = page.locator(f"#gpu-{other.pk} .gpu-note")
    expect(note).to_have_text("closed in Slurm: new fans")
    # The age of the portal's own figures is not that of Slurm's.
    expect(page.locator("#slurm-age")).to_have_text(re.compile(r"^Slurm: 1\d s ago$"))
    expect(page.locator("#live")).to_have_text(re.compile(r"^live, \d\.\d s$"))

    SlurmCluster.objects.update(failing_since=now)
    live_cluster.client.publish(CALENDAR_CHANGED, b"")
    silent = re.compile(r"^Slurm has not answered since \d\d:\d\d$")
    expect(page.locator("#slurm-age")).to_have_text(silent)
    expect(card.locator(".gpu-holder")).to_have_text("You")
