"""Refinements: requested once, stored by content, cancelled, replaced when lost."""

from datetime import timedelta

import pytest
from django.utils import timezone

from placement.models import Refinement, RegisteredModel
from placement.planner.symbolic.child_process import ChildAnswers, SymbolicFailed
from placement.planner.values.errors import BadInput, SpecInvalid
from placement.planner.values.workload import Workload
from placement.plans import refinement
from placement.plans import refinement as refining_service
from placement.plans.refinement import cancel_refinement, make_next_refinement
from reservations.rules.errors import NotFound

pytestmark = pytest.mark.django_db(transaction=True)
State = Refinement.State
ANSWER = {"peak_bytes": 7, "method": "symbolic"}


@pytest.fixture
def child(monkeypatch):
    """A child that answers at once. Yields its arguments."""
    seen = []

    def run(cases, *, listener, cancelled, seconds):
        seen.append(cases)
        listener(0, "backward", 0.5)
        if cancelled():
            raise SymbolicFailed("cancelled", "was cancelled")
        return ChildAnswers([ANSWER], 1.0)

    monkeypatch.setattr(refinement.child_process, "run", run)
    return seen


def ask(user, *, name="gpt2", now=None, **workload):
    return refining_service.refine(
        user=user,
        well_known=name,
        model_id=None,
        workload=Workload(**workload),
        now=now or timezone.now(),
    )


def follow(row):
    state = refining_service.compute_refinement(
        refinement_id=row.pk, clock=timezone.now
    )
    row.refresh_from_db()
    return state


@pytest.mark.once
def test_the_same_question_is_followed_once_whoever_asks(alice, carol, child):
    row, fresh = ask(alice)
    assert fresh
    assert follow(row) == State.DONE
    assert (row.answer, row.done_ratio) == (ANSWER, 1.0)
    again, fresh = ask(carol)
    assert (again.pk, fresh) == (row.pk, False)
    other, fresh = ask(carol, batch=9)
    assert fresh
    assert other.key != row.key
    assert len(child) == 1


def test_a_waiting_question_is_not_sent_twice_and_a_taken_one_not_followed_twice(
    alice, bob, child
):
    row, _ = ask(alice)
    assert ask(bob) == (row, False)
    Refinement.objects.filter(pk=row.pk).update(state=State.RUNNING)
    assert follow(row) == State.RUNNING
    assert child == []


def test_a_lost_worker_is_overtaken(alice, child):
    row, _ = ask(alice)
    Refinement.objects.filter(pk=row.pk).update(
        state=State.RUNNING, started_at=timezone.now()
    )
    assert ask(alice)[1] is False
    later = timezone.now() + timedelta(seconds=refinement.STALE_SECONDS + 1)
    again, fresh = ask(alice, now=later)
    assert (again.pk, fresh, again.state) == (row.pk, True, State.WAITING)


@pytest.mark.once
def test_a_failure_is_told_and_may_be_asked_again_later(alice, monkeypatch):
    def broken(*_args, **_named):
        raise SymbolicFailed("too-slow", "took too long")

    monkeypatch.setattr(refinement.child_process, "run", broken)
    row, _ = ask(alice)
    assert follow(row) == State.FAILED
    assert row.problem == "took too long"
    assert ask(alice)[1] is False
    later = timezone.now() + timedelta(seconds=refinement.STALE_SECONDS + 1)
    assert ask(alice, now=later)[1] is True


def test_only_whoever_asked_cancels_and_a_cancel_reaches_the_child(
    alice, bob, child, monkeypatch
):
    row, _ = ask(alice)
    with pytest.raises(NotFound):
        cancel_refinement(user=bob, key=row.key, now=timezone.now())
    run = refinement.child_process.run

    def cancelled_on_the_way(cases, **named):
        cancel_refinement(user=alice, key=row.key, now=timezone.now())
        return run(cases, **named)

    monkeypatch.setattr(refinement.child_process, "run", cancelled_on_the_way)
    assert follow(row) == State.CANCELLED
    assert row.answer is None
    assert not cancel_refinement(user=alice, key=row.key, now=timezone.now())
    assert ask(alice)[1] is True


def test_an_upload_is_followed_only_for_its_owner_and_only_with_its_config(
    bob, carol, child
):
    config = {"model_type": "gpt2", "n_layer": 2}
    mine = RegisteredModel.objects.create(
        owner=bob, name="a", source="config", sha256="1", spec={"config": config}
    )
    sizes = RegisteredModel.objects.create(
        owner=bob, name="b", source="safetensors", sha256="2", spec={}
    )
    given = {"well_known": "", "workload": Workload(), "now": timezone.now()}
    row, _ = refining_service.refine(user=bob, model_id=mine.pk, **given)
    assert row.case["model"]["config"] == config
    with pytest.raises(SpecInvalid, match="gone"):
        refining_service.refine(user=carol, model_id=mine.pk, **given)
    with pytest.raises(SpecInvalid, match="no code"):
        refining_service.refine(user=bob, model_id=sizes.pk, **given)


@pytest.mark.once
def test_nobody_fills_the_queue(alice, bob, child):
    for batch in range(1, 1 + refinement.MOST_OPEN_PER_USER):
        ask(alice, batch=batch)
    with pytest.raises(BadInput, match="still being followed"):
        ask(alice, batch=99)
    assert ask(bob, batch=99)[1] is True


def test_what_cannot_be_followed_is_said_before_it_is_kept(alice, monkeypatch):
    with pytest.raises(SpecInvalid, match="closed form only"):
        ask(alice, precision="megatron_bf16")
    with pytest.raises(SpecInvalid, match="well-known"):
        ask(alice, name="nope")
    monkeypatch.setattr(refinement, "torch_installed", lambda: False)
    with pytest.raises(BadInput, match="no torch"):
        ask(alice)
    assert not Refinement.objects.exists()


def test_old_answers_are_forgotten(alice, child, monkeypatch):
    monkeypatch.setattr(refinement, "MOST_KEPT", 2)
    now = timezone.now()
    for batch in range(1, 5):
        follow(ask(alice, batch=batch, now=now + timedelta(seconds=batch))[0])
    ask(alice, batch=9, now=now + timedelta(seconds=9))
    kept = [row.case["input"]["batch"] for row in Refinement.objects.all()]
    assert kept == [9, 4, 3]


def test_three_of_one_person_do_not_keep_another_waiting_for_all_three(
    alice, carol, child
):
    now = timezone.now()
    hers = [ask(alice, batch=n, now=now)[0] for n in (1, 2, 3)]
    carols, _ = ask(carol, batch=4, now=now + timedelta(seconds=1))
    made = []

    for sent in (*hers, carols):
        made.append(refinement.next_refinement(sent.pk))
        make_next_refinement(refinement_id=sent.pk, clock=timezone.now)

    assert made == [hers[0].pk, carols.pk, hers[1].pk, hers[2].pk]
