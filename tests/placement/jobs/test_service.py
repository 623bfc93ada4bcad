"""Launching and stopping: who may, what is refused, in words."""

import json
from datetime import timedelta

import pytest
from django.utils import timezone

from placement.jobs import service as jobs
from placement.jobs.nodes.command_queue import start_order
from placement.models import Job, StoredPlan
from placement.planner.launch.quantized_bases import NEEDS_ADAPTERS
from placement.planner.launch.recipes import recipe_command
from placement.planner.model.adaptation import with_lora
from placement.planner.model.well_known import well_known_spec
from placement.planner.search.memory_savings import PlanLimits
from placement.planner.search.planner import plan as make_plans
from placement.planner.values.errors import LaunchInvalid
from placement.planner.values.gpu_list import offers_from_list
from placement.planner.values.workload import Workload
from placement.protocol.commands import parse_order
from placement.protocol.job_lifecycle import JobState
from placement.rules.job_refusals import (
    JobOver,
    PlanElsewhere,
    ReservationNotUsable,
    ScriptsNotAllowed,
    SpansNodes,
    StrategyNotRunnable,
    TooManyJobs,
)
from reservations.models import Identity, SitePolicy, User
from reservations.rules.errors import NotAllowed, NotFound
from reservations.rules.lifecycle import State
from telemetry import request_id
from tests.factories import make_gpus, make_node, make_reservation

pytestmark = pytest.mark.django_db
NOW = timezone.now()


@pytest.fixture
def reservation(alice):
    return make_reservation(alice, make_gpus(2), start=NOW, state=State.ACTIVE)


def launch(user, reservation, **changes):
    known = {"name": "try", "kind": "recipe", "recipe": "burn-in"}
    return jobs.launch(
        user=user, reservation_id=reservation.pk, now=NOW, **{**known, **changes}
    )


def test_a_recipe_is_queued_with_its_defaults_written_down(alice, reservation):
    job = launch(alice, reservation, recipe_settings={"seconds": 5})
    assert (job.state, job.attempt, job.owner) == (JobState.QUEUED, 0, alice)
    assert job.recipe_settings["seconds"] == 5
    assert job.recipe_settings["exit_code"] == 0
    assert job.node == reservation.allocations.first().gpu.node
    (event,) = job.events.all()
    assert (event.old, event.new, event.actor) == ("", "queued", "alice")


def test_a_job_keeps_the_id_of_the_request_that_launched_it(alice, reservation):
    with request_id.set_for("launched-by-this"):
        job = launch(alice, reservation)
    assert Job.objects.get(pk=job.pk).request_id == "launched-by-this"


def test_carol_and_bob_and_omar_cannot_launch_into_alices_reservation(
    reservation, bob, carol, omar
):
    for other in (bob, carol, omar):
        with pytest.raises(NotFound):
            launch(other, reservation)


@pytest.mark.once
@pytest.mark.parametrize("state", [State.ENDED, State.RELEASED, State.CANCELLED])
def test_a_reservation_that_is_over_takes_no_job(alice, reservation, state):
    type(reservation).objects.filter(pk=reservation.pk).update(state=state)
    with pytest.raises(ReservationNotUsable, match="Book a new one"):
        launch(alice, reservation)


def test_a_reservation_at_its_very_end_takes_no_job(alice):
    late = make_reservation(
        alice, start=NOW - timedelta(hours=1), end=NOW, state=State.ACTIVE
    )
    with pytest.raises(ReservationNotUsable):
        launch(alice, late)


def test_a_reservation_ahead_takes_a_job_that_waits(alice):
    ahead = make_reservation(alice, start=NOW + timedelta(hours=1))
    assert launch(alice, ahead).state == JobState.QUEUED


@pytest.mark.once
@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"name": " "}, "name"),
        ({"name": "x" * 121}, "name"),
        ({"name": "a\x1b[2J"}, "name"),
        ({"kind": "binary"}, "kind"),
        ({"recipe": "rm"}, "recipe"),
        ({"recipe_settings": {"seconds": "long"}}, "recipe_settings.seconds"),
        ({"recipe_settings": {"seconds": float("nan")}}, "recipe_settings.seconds"),
        ({"recipe_settings": {"exit_code": 1.5}}, "recipe_settings.exit_code"),
        ({"recipe_settings": {"nope": 1}}, "recipe_settings.nope"),
        ({"script": "echo"}, "script"),
        ({"kind": "script", "script": "  "}, "script"),
        ({"kind": "script", "script": "x" * 300_000}, "script"),
        ({"kind": "script", "script": "a\0b"}, "script"),
        ({"kind": "script", "script": "x", "arguments": ["a"] * 65}, "arguments"),
        ({"kind": "script", "script": "x", "arguments": ["a" * 2000]}, "arguments"),
    ],
)
def test_a_field_that_cannot_be_used_is_named(alice, reservation, changes, field):
    with pytest.raises(LaunchInvalid) as error:
        launch(alice, reservation, **changes)
    assert list(error.value.fields) == [field]
    assert not Job.objects.exists()


def test_the_transformers_heads_must_divide_its_width(alice, reservation):
    with pytest.raises(LaunchInvalid, match="must divide the hidden width 64"):
        launch(
            alice, reservation, recipe="tiny-transformer", recipe_settings={"heads": 5}
        )


def test_a_script_needs_isolation_and_a_unix_user(alice, reservation, settings):
    script = {"kind": "script", "recipe": "", "script": "echo hi"}
    with pytest.raises(ScriptsNotAllowed, match="Only ready recipes run there"):
        launch(alice, reservation, **script)
    node = reservation.allocations.first().gpu.node
    type(node).objects.filter(pk=node.pk).update(isolation="watched")
    with pytest.raises(ScriptsNotAllowed, match="no Unix user"):
        launch(alice, reservation, **script)
    alice.unix_user = "alice"
    alice.save()
    assert launch(alice, reservation, **script).kind == Job.Kind.SCRIPT


def test_the_operator_may_allow_scripts_by_a_setting(alice, reservation, settings):
    settings.ALLOW_UNISOLATED_SCRIPTS = True
    job = launch(
        alice, reservation, kind="script", recipe="", script="echo", arguments=["a b"]
    )
    assert job.arguments == ["a b"]


def test_gpus_on_two_nodes_need_a_named_one(alice):
    first, second = make_node("red"), make_node("blue")
    gpus = [*make_gpus(2, first), *make_gpus(1, second)]
    both = make_reservation(alice, gpus, start=NOW, state=State.ACTIVE)
    with pytest.raises(SpansNodes, match=r"blue: 1, red: 2.*Choose the node"):
        launch(alice, both)
    with pytest.raises(SpansNodes, match="no GPU on green"):
        launch(alice, both, node="green")
    assert launch(alice, both, node="blue").node == second


@pytest.mark.once
def test_one_reservation_has_a_ceiling_of_live_jobs(alice, reservation):
    first = launch(alice, reservation)
    rest = [Job(**_row(first)) for _ in range(99)]
    Job.objects.bulk_create(rest)
    with pytest.raises(TooManyJobs, match="The limit is 100"):
        launch(alice, reservation)
    Job.objects.filter(pk=first.pk).update(state=JobState.DONE)
    launch(alice, reservation)


def _row(job):
    names = ("reservation", "owner", "node", "name", "kind", "recipe")
    return {name: getattr(job, name) for name in names}


def test_more_gpus_than_are_held_and_too_many_retries_are_refused_by_field(
    alice, reservation
):
    with pytest.raises(LaunchInvalid) as refused:
        launch(alice, reservation, gpu_count=3, retries=6)
    assert set(refused.value.fields) == {"gpu_count", "retries"}
    with pytest.raises(LaunchInvalid, match="at least one restart"):
        launch(alice, reservation, retry_failed=True)


def make_plan(user, strategy, task="train"):
    return StoredPlan.objects.create(
        owner=user,
        title="p",
        spec={},
        workload={},
        plan={"strategy": strategy, "launch": {"task": task}},
    )


def test_a_plan_that_runs_today_gives_the_recipe_its_strategy(alice, reservation):
    plan = make_plan(alice, "single")
    job = launch(alice, reservation, recipe="tiny-transformer", plan_id=plan.pk)
    assert job.plan == plan
    assert job.recipe_settings["strategy"] == "single"


@pytest.mark.once
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"precision": "mixed_fp16"}, "not mixed_fp16"),
        ({"optimizer": "adafactor"}, "not adafactor"),
        ({"offload": "moon"}, "moon"),
        ({"x": "y" * 50_000}, "too long"),
    ],
)
def test_a_plan_that_nothing_runs_is_refused_with_the_reason(
    alice, reservation, changes, words
):
    plan = make_plan(alice, "ddp")
    plan.plan["launch"] |= changes
    plan.save()
    with pytest.raises(StrategyNotRunnable, match=words) as refusal:
        launch(alice, reservation, recipe="tiny-transformer", plan_id=plan.pk)
    assert "ddp" in str(refusal.value)


def real_plan(user, reservation, strategy, **changes):
    """Keep the planner's own Plan for the Gpus of a Reservation, the last one first."""
    gpus = [row.gpu for row in reservation.allocations.order_by("-gpu__index")]
    offers = offers_from_list(
        [
            {
                "name": "NVIDIA A100 80GB",
                "free_bytes": 80 * 10**9,
                "uuid": gpu.uuid,
                "node": gpu.node.name,
                "index": place,
                "link_group": "a",
            }
            for place, gpu in enumerate(gpus)
        ]
    )
    found = make_plans(
        well_known_spec("gpt2"),
        Workload(batch=16),
        offers,
        limits=PlanLimits(strategies=(strategy,)),
    )
    plan = json.loads(json.dumps(found.plans[0].to_json()))
    plan["launch"] |= changes
    return StoredPlan.objects.create(
        owner=user, title="p", spec={}, workload={}, plan=plan
    )


@pytest.mark.once
@pytest.mark.parametrize(
    "strategy", ["ddp", "zero1", "zero2", "fsdp", "pipeline", "gpipe", "tensor"]
)
def test_a_plan_is_ordered_with_its_gpus_in_its_own_order(alice, reservation, strategy):
    plan = real_plan(alice, reservation, strategy)
    job = launch(alice, reservation, recipe="tiny-transformer", plan_id=plan.pk)
    assert job.recipe_settings["strategy"] == strategy
    order = start_order(job, now=NOW)
    wanted = [shard["gpu_uuid"] for shard in plan.plan["shards"]]
    assert list(order.gpu_uuids) == wanted
    assert list(order.gpu_indexes) == [1, 0]
    assert order.plan == plan.plan
    assert parse_order(order.payload()).plan == plan.plan
    argv = recipe_command(
        order.recipe, order.settings, gpu_count=2, python="py", plan=order.plan
    )
    assert argv[-1] == "plan.json"


def test_a_plan_for_one_gpu_gets_that_gpu_and_no_other(alice, reservation):
    plan = real_plan(alice, reservation, "single")
    job = launch(alice, reservation, recipe="tiny-transformer", plan_id=plan.pk)
    User.objects.filter(pk=alice.pk).update(unix_user="alice")
    Identity.objects.create(
        user=alice, issuer="x", subject="7", unix_user="alice", unix_uid=1815
    )
    job.owner.refresh_from_db()
    order = start_order(job, now=NOW)
    assert order.gpu_uuids == (plan.plan["shards"][0]["gpu_uuid"],)
    assert (order.unix_user, order.unix_uid) == ("alice", 1815)


def test_a_model_too_small_for_the_plan_is_refused_in_words(alice, reservation):
    plan = real_plan(alice, reservation, "pipeline", bounds=[0, 2, 4, 6, 8, 14])
    with pytest.raises(StrategyNotRunnable, match="set at least 3 blocks"):
        launch(
            alice,
            reservation,
            recipe="tiny-transformer",
            plan_id=plan.pk,
            recipe_settings={"layers": 1},
        )


def test_a_strategy_of_shares_and_stages_needs_its_plan(alice, reservation):
    given = {"strategy": "pipeline"}
    with pytest.raises(LaunchInvalid) as refused:
        launch(alice, reservation, recipe="tiny-transformer", recipe_settings=given)
    assert "needs a plan" in refused.value.fields["recipe_settings.strategy"]


def test_a_plan_is_not_run_on_another_node(alice):
    gpus = [*make_gpus(2, make_node("red")), *make_gpus(1, make_node("blue"))]
    both = make_reservation(alice, gpus, start=NOW, state=State.ACTIVE)
    plan = real_plan(alice, both, "ddp")
    job = launch(alice, both, recipe="tiny-transformer", plan_id=plan.pk)
    assert job.node.name == plan.plan["node"]
    with pytest.raises(LaunchInvalid) as refused:
        launch(alice, both, recipe="tiny-transformer", plan_id=plan.pk, node="blue")
    assert "the plan is for red" in refused.value.fields["node"]


def test_a_plan_for_other_gpus_is_refused_with_their_names(alice, reservation):
    plan = make_plan(alice, "single")
    plan.plan["shards"] = [{"gpu_uuid": "GPU-elsewhere", "gpu_label": "node-z:3"}]
    plan.save()
    with pytest.raises(PlanElsewhere) as refused:
        launch(alice, reservation, recipe="tiny-transformer", plan_id=plan.pk)
    assert "node-z:3" in refused.value.text()


def test_a_plan_to_infer_is_not_trained(alice, reservation):
    plan = make_plan(alice, "single", task="infer")
    with pytest.raises(StrategyNotRunnable):
        launch(alice, reservation, recipe="tiny-transformer", plan_id=plan.pk)


def test_another_persons_plan_is_not_found(alice, bob, reservation):
    with pytest.raises(NotFound):
        launch(alice, reservation, plan_id=make_plan(bob, "ddp").pk)


def stop(user, job, **changes):
    return jobs.stop(job_id=job.pk, user=user, now=NOW, **changes)


def test_a_queued_job_is_stopped_at_once(alice, reservation):
    job = stop(alice, launch(alice, reservation), reason="wrong one")
    assert (job.state, job.reason, job.ended_at) == (JobState.STOPPED, "wrong one", NOW)


@pytest.mark.parametrize("state", [JobState.STARTING, JobState.RUNNING])
def test_what_runs_is_stopping_until_its_node_says_otherwise(alice, reservation, state):
    job = launch(alice, reservation)
    Job.objects.filter(pk=job.pk).update(state=state)
    assert stop(alice, job).state == JobState.STOPPING
    assert stop(alice, job).state == JobState.STOPPING
    assert job.events.filter(new=JobState.STOPPING).count() == 1


def test_what_has_ended_cannot_be_stopped(alice, reservation):
    job = launch(alice, reservation)
    stop(alice, job)
    with pytest.raises(JobOver, match="is already stopped"):
        stop(alice, job)


def test_who_may_see_and_who_may_stop(alice, bob, carol, omar, reservation):
    job = launch(alice, reservation)
    for other in (bob, carol):
        with pytest.raises(NotFound):
            stop(other, job)
    bob.memberships.update(is_head=True)
    with pytest.raises(NotAllowed):
        stop(bob, job)
    stopped = stop(omar, job)
    assert stopped.reason == "stopped by the lab admin"
    assert stopped.events.last().actor == "omar"


def test_a_model_of_ones_own_needs_isolation_like_a_script(
    alice, reservation, settings
):
    with pytest.raises(ScriptsNotAllowed):
        launch(alice, reservation, recipe="own-model")
    settings.ALLOW_UNISOLATED_SCRIPTS = True
    job = launch(alice, reservation, recipe="own-model")
    assert job.recipe_settings["model"] == "train:model"


@pytest.mark.once
def test_a_model_of_ones_own_is_shared_out_but_not_cut(alice, reservation, settings):
    settings.ALLOW_UNISOLATED_SCRIPTS = True
    plan = real_plan(alice, reservation, "zero1")
    job = launch(alice, reservation, recipe="own-model", plan_id=plan.pk)
    assert job.recipe_settings["strategy"] == "zero1"
    cut = real_plan(alice, reservation, "pipeline")
    with pytest.raises(StrategyNotRunnable, match="cannot cut your own model"):
        launch(alice, reservation, recipe="own-model", plan_id=cut.pk)


@pytest.mark.once
def test_a_fine_tune_needs_isolation_and_names_its_invalid_fields(
    alice, reservation, settings
):
    files = {"model": "/srv/llama", "data": "/srv/rows.jsonl"}
    with pytest.raises(ScriptsNotAllowed):
        launch(alice, reservation, recipe="fine-tune", recipe_settings=files)
    settings.ALLOW_UNISOLATED_SCRIPTS = True
    with pytest.raises(LaunchInvalid) as refused:
        launch(alice, reservation, recipe="fine-tune", recipe_settings={"seq": 1})
    assert set(refused.value.fields) == {
        f"recipe_settings.{name}" for name in ("model", "data", "seq")
    }
    plan = real_plan(alice, reservation, "fsdp")
    wanted = {"recipe": "fine-tune", "recipe_settings": files}
    job = launch(alice, reservation, plan_id=plan.pk, **wanted)
    assert job.recipe_settings["strategy"] == "fsdp"
    assert job.recipe_settings["lora_rank"] == 0
    sizes = {
        "seq": plan.plan["workload"]["sequence_length"],
        "batch": plan.plan["launch"]["microbatch"],
    }
    assert sizes["batch"] > 1
    assert job.recipe_settings.items() >= sizes.items()
    stop(alice, job)
    typed = {**wanted, "recipe_settings": {**files, "batch": 3}}
    job = launch(alice, reservation, plan_id=plan.pk, **typed)
    assert job.recipe_settings.items() >= (sizes | {"batch": 3}).items()
    plan.spec = with_lora(
        well_known_spec("gpt2"), rank=8, targets=("c_attn",)
    ).to_json()
    plan.save()
    stop(alice, job)
    adapted = launch(alice, reservation, plan_id=plan.pk, **wanted)
    assert adapted.recipe_settings["lora_rank"] == 8
    assert adapted.recipe_settings["lora_targets"] == "c_attn"
    stop(alice, adapted)
    asked = {**wanted, "recipe_settings": {**files, "weights": "nf4"}}
    with pytest.raises(LaunchInvalid) as refused:
        launch(alice, reservation, **asked)
    assert refused.value.fields == {"recipe_settings.weights": NEEDS_ADAPTERS}
    with pytest.raises(StrategyNotRunnable, match="all weights on each GPU"):
        launch(alice, reservation, plan_id=plan.pk, **asked)
    copies = real_plan(alice, reservation, "ddp")
    copies.plan["launch"]["weights"] = "nf4"
    copies.save()
    with pytest.raises(StrategyNotRunnable, match="set a LoRA rank"):
        launch(alice, reservation, plan_id=copies.pk, **wanted)
    copies.spec = plan.spec
    copies.save()
    job = launch(alice, reservation, plan_id=copies.pk, **wanted)
    assert job.recipe_settings["weights"] == "nf4"
    assert job.recipe_settings["lora_rank"] == 8
    stop(alice, job)
    pre_trained = launch(
        alice, reservation, recipe="pre-train", recipe_settings=files, plan_id=plan.pk
    )
    assert "lora_rank" not in pre_trained.recipe_settings
    stop(alice, pre_trained)
    staged = real_plan(alice, reservation, "pipeline")
    job = launch(alice, reservation, plan_id=staged.pk, **wanted)
    assert job.recipe_settings["strategy"] == "pipeline"
    stop(alice, job)
    turns = real_plan(alice, reservation, "interleaved")
    job = launch(alice, reservation, plan_id=turns.pk, **wanted)
    assert job.recipe_settings["strategy"] == "interleaved"
    shared = real_plan(alice, reservation, "pipeline", zero_stage=2)
    with pytest.raises(StrategyNotRunnable, match="also share out its gradients"):
        launch(alice, reservation, plan_id=shared.pk, **wanted)


def test_an_order_carries_what_the_policy_gives_a_job_and_a_person(alice, reservation):
    policy = SitePolicy.current()
    policy.job_folder_bytes, policy.person_folders_bytes = 5 * 2**30, 7 * 2**30
    policy.save()
    order = start_order(launch(alice, reservation), now=NOW)
    limits = parse_order(order.payload()).limits
    assert (limits.disk_bytes, limits.person_bytes) == (5 * 2**30, 7 * 2**30)
