"""The environment of bench/placement.py's look: a site with a running Job."""

import json
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

from bench.rig import cluster

GPUS = 8


@contextmanager
def running_job() -> Iterator[object]:
    """Run a training on one of eight free Gpus with fresh readings. Yield the look."""
    var = tempfile.mkdtemp(prefix="gpl-")
    cluster.setup(var)
    from django.conf import settings

    from telemetry import paths

    with cluster.valkey(paths.embedded_socket()):
        cluster.make_cluster(nodes=2, gpus=GPUS, people=1)
        yield _prepare(settings.REDIS_URL)
    Path(var, "db.sqlite3").unlink(missing_ok=True)


def _prepare(redis_url: str):  # type: ignore[no-untyped-def]
    import redis
    from django.utils import timezone

    from placement.models import Job, PlacementPolicy
    from placement.planner.model.well_known import well_known_spec
    from placement.planner.search.memory_savings import PlanLimits
    from placement.planner.values.workload import Workload
    from placement.plans.service import make_plans, offered, save_plan
    from placement.rebalance import rebalance_tick
    from reservations.booking.service import book
    from reservations.models import Account, Membership, User
    from telemetry.live import broadcast
    from telemetry.models import Gpu

    now = timezone.now().replace(microsecond=0)
    user = User.objects.get(username="bench0")
    account = Account.objects.create(name="lab", title="Lab")
    Membership.objects.create(user=user, account=account)
    client = redis.Redis.from_url(redis_url)
    _frame(client)
    spec = well_known_spec("llama-2-7b")
    gpus = list(Gpu.objects.filter(node__name="node-000").order_by("index"))[:4]
    reservation = book(
        user=user,
        membership=None,
        gpu_ids=[gpu.pk for gpu in gpus],
        start=now,
        end=now.replace(minute=0, second=0) + timedelta(hours=9),
        now=now,
    )
    found = offered(user=user, at=None, hours=1, now=now, reservation_id=reservation.pk)
    plans = make_plans(
        spec=spec,
        workload=Workload(batch=32, sequence_length=2048),
        offers=found.offers,
        limits=PlanLimits(strategies=("pipeline",)),
        objective="fastest",
    )
    stored = save_plan(user=user, spec=spec, plan=plans.plans[0], now=now)
    job = Job.objects.create(
        reservation=reservation,
        owner=user,
        plan=stored,
        node=gpus[0].node,
        name="x",
        kind="script",
        script="python train.py",
        state="running",
        may_move=True,
        restart="resumes",
        started_at=now,
        seen_at=now,
        attempt=1,
    )
    client.set(
        broadcast.DETAIL + "node-000",
        json.dumps({"node": "node-000", "gpus": {}, "at": 0}),
    )

    def look() -> None:
        row = rebalance_tick._planned().get(pk=job.pk)
        assert rebalance_tick._judge_job(
            row, None, PlacementPolicy.current(), timezone.now()
        )
        made = job.moves.first()
        assert made is not None and made.step_seconds_now is not None, "not weighed"

    return look


def _frame(client) -> None:  # type: ignore[no-untyped-def]
    """Publish fresh readings of every Gpu, half an hour ahead of the clock."""
    from telemetry.inventory.queries import load_cluster
    from telemetry.live import broadcast
    from telemetry.models import Gpu
    from telemetry.protocol.frame import Frame, FrameRow, encode
    from telemetry.protocol.gpu_state import GpuState

    cluster = load_cluster()
    rows = tuple(
        FrameRow(
            state=GpuState.FREE,
            util_pct=3,
            memory_used_mib=400 + 150 * (number % 5),
            temperature_celsius=35,
            power_watts=60,
            sm_clock_mhz=210,
            age_seconds=0.4,
        )
        for number in range(Gpu.objects.count())
    )
    with client.pipeline() as pipe:
        broadcast.publish_roster(pipe, cluster.roster)
        frame = Frame(cluster.roster_id, time.time() + 1800, rows)
        broadcast.publish_frame(pipe, encode(frame))
        pipe.execute()
