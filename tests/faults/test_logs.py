"""Large logs in little memory: during transfer, in a search, to a browser."""

import gc
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from django.utils import timezone

from placement.agent.job_folder import JobFolder
from placement.agent.storage.live_log import LogPump
from placement.agent.storage.log_upload import Uploader
from placement.jobs import service as jobs
from placement.jobs.nodes import log_store
from placement.models import Job
from reservations.rules.lifecycle import State
from tests.factories import make_gpus, make_node, make_reservation
from tests.faults.running_portal import Ended
from tests.placement.lab import signed_in

LOG_BYTES = 64 * 2**20
MOST_BYTES = 24 * 2**20
"""A fraction of the log. A mebibyte is in memory in each of a few places."""
SELF = Path("/proc/self")


def most_resident_bytes(*, anew: bool = False) -> int:
    """Return this process's largest resident set; `anew`: since now (proc(5))."""
    if anew:
        (SELF / "clear_refs").write_text("5")
    lines = (SELF / "status").read_text().splitlines()
    return next(int(x.split()[1]) * 1024 for x in lines if x.startswith("VmHWM"))


@pytest.fixture
def usual_collection() -> Iterator[None]:
    """Python's own thresholds, as in a portal. Those of the suite keep more garbage."""
    thresholds = gc.get_threshold()
    gc.set_threshold(700, 10, 10)
    yield
    gc.set_threshold(*thresholds)


@pytest.mark.usefixtures("usual_collection")
@pytest.mark.django_db(transaction=True)
def test_a_large_log_goes_up_is_searched_and_fetched_in_little_memory(
    alice, node, live_asgi, tmp_path
):
    row = make_node("node1")
    type(row).objects.filter(pk=row.pk).update(
        token_hash=row.hash_token("token-of-node1")
    )
    held = make_reservation(alice, make_gpus(1, row), state=State.ACTIVE)
    job = jobs.launch(
        user=alice,
        reservation_id=held.pk,
        name="talks",
        kind="recipe",
        recipe="burn-in",
        now=timezone.now(),
    )
    Job.objects.filter(pk=job.pk).update(attempt=1)
    job.refresh_from_db()
    folder = JobFolder.of(tmp_path, job.pk, 1, job.key)
    folder.path.mkdir()
    line = b"x" * 99 + b"\n"
    with folder.log.open("wb") as file:
        for _ in range(LOG_BYTES // 2**20):
            file.write(line * 10_485 + b"y" * 75 + b"\n")
        file.write(b"the last line\n")
    settings = type(node)(**{**vars(node), "web_url": live_asgi})
    cookie = signed_in(alice).cookies["sessionid"].value
    page = urllib.request.Request(
        f"{live_asgi}/jobs/{job.pk}/", headers={"Cookie": f"sessionid={cookie}"}
    )
    with urllib.request.urlopen(page, timeout=60) as answer:
        assert answer.read()  # The first page imports the views and reads the texts.
    before_bytes = most_resident_bytes(anew=True)
    uploader, item, pump = Uploader(settings), Ended(folder), LogPump(folder)
    while uploader.piece(item):
        pump.next_message(0.0, ended=True)
    found = log_store.search(job, "the LAST line")
    asked = urllib.request.Request(f"{live_asgi}/jobs/{job.pk}/log.txt")
    asked.add_header("Cookie", f"sessionid={cookie}")
    with (
        urllib.request.urlopen(asked, timeout=60) as answer,
        folder.log.open("rb") as f,
    ):
        while piece := f.read(2**20):
            assert answer.read(len(piece)) == piece
        assert answer.read() == b""
    assert most_resident_bytes() - before_bytes < MOST_BYTES
    assert log_store.path_of(job).stat().st_size == folder.log_bytes() > LOG_BYTES
    assert [hit.data for hit in found.hits] == ["the last line"]
    assert found.hits[0].offset == folder.log_bytes() - len(b"the last line\n")
