"""The review of a running Job: stay, propose a move, or move it. A pure decision.

See docs/design/placement.md#moving. If one of its Gpus has a problem (an intruder or a
fault), the Plan that keeps the Job alive wins. Otherwise, and only if the Job allows
it, the question is whether a better Plan is worth its transfer
(`move_or_stay.decide_move`). The site's policy determines the result: never, propose,
or move. A Job without a restart setting is never moved.
"""

from dataclasses import dataclass

from placement.planner.search.move_or_stay import decide_move, regret_after
from placement.rules.rebalance_policy import (
    RebalanceAction,
    RebalancePolicy,
    RestartMode,
)
from telemetry.protocol.sentences import counted, joined, sentence

SAME_RATIO = 1e-9
"""Step times that differ by less are equal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuTrouble:
    """The problem of a Gpu of the Job."""

    rule: str
    """The Alert's rule."""
    gpu_label: str
    breaks: bool
    """The Gpu is unreliable; False: another person uses it too."""
    unheard: bool = False
    """Its node reports nothing. The Job may still run there and cannot be stopped."""

    @property
    def words(self) -> str:
        """Return the trouble in words for people."""
        if self.breaks:
            return sentence(
                "GPU {gpu_label} is not reliable ({rule})",
                gpu_label=self.gpu_label,
                rule=self.rule,
            )
        return sentence("Someone else uses {gpu_label}", gpu_label=self.gpu_label)


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveSnapshot:
    """The facts of one review. Times are in seconds."""

    rules: RebalancePolicy
    may_move: bool
    restart: RestartMode
    trouble: GpuTrouble | None = None
    step_seconds_now: float | None
    """Time of a step at the present place and in the present state; None: the Job
    cannot continue there.
    """
    step_seconds_new: float | None
    """Time of a step under the best other Plan; None: there is none."""
    no_plan: str = ""
    """Why there is no other Plan."""
    places: str = ""
    """The place of the other Plan, for people."""
    steps_left: int | None = None
    window_seconds: float
    """Remaining time of the Reservation."""
    cost_seconds: float = 0.0
    regret_seconds: float = 0.0
    """Regret up to the last review."""
    elapsed_seconds: float = 0.0
    """Time since the last review."""
    seconds_since_last_move: float | None = None
    last_move_cost_seconds: float = 0.0
    dearer: bool = False
    """The other Gpus cost more quota."""
    companions: int = 0
    """Other live Jobs of the Reservation. They would end, because all of it moves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveVerdict:
    """The result of a review, with its numbers."""

    act: RebalanceAction
    reason: str
    gain_seconds: float | None = None
    cost_seconds: float | None = None
    regret_seconds: float = 0.0


def decide_rebalance(look: MoveSnapshot) -> MoveVerdict:
    """Decide. Deterministic. Every branch gives its reason in words."""
    if look.trouble is not None:
        return _in_trouble(look, look.trouble)
    if not look.may_move:
        return _stay_verdict(sentence("the job does not ask to be moved"))
    if look.companions:
        jobs = counted("{n} other job", "{n} other jobs", look.companions)
        return _stay_verdict(
            sentence("{jobs} of the same reservation would end with a move", jobs=jobs)
        )
    now, new = look.step_seconds_now, look.step_seconds_new
    if now is None:
        return _stay_verdict(sentence("what its plan would take now is not known"))
    if new is None or new >= now * (1 - SAME_RATIO):
        why = look.no_plan if new is None else sentence("no other plan is faster")
        return _stay_verdict(
            sentence("{why}: {now} s a step where it is", why=why, now=f"{now:.3g}")
        )
    return _move_if_worthwhile(look, now, new)


def _stay_verdict(reason: str) -> MoveVerdict:
    return MoveVerdict(
        act=RebalanceAction.NEVER, reason=sentence("Stays: {reason}.", reason=reason)
    )


def _move_if_worthwhile(look: MoveSnapshot, now: float, new: float) -> MoveVerdict:
    """Apply the rule of section 4 to a better Plan."""
    regret = regret_after(
        look.regret_seconds,
        elapsed_seconds=look.elapsed_seconds,
        step_seconds_now=now,
        step_seconds_new=new,
    )
    within = int(look.window_seconds / now) if now > 0 else 0
    left = None if look.steps_left is None else min(look.steps_left, within)
    made = decide_move(
        step_seconds_now=now,
        step_seconds_new=new,
        steps_left=left,
        cost_seconds=look.cost_seconds,
        regret_seconds=regret,
        seconds_since_last_move=look.seconds_since_last_move,
        last_move_cost_seconds=look.last_move_cost_seconds,
        margin_ratio=look.rules.margin_ratio,
        hold_down_factor=look.rules.hold_down_factor,
    )
    pace = sentence(
        "{places}: {new} s a step instead of {now} s; {reason}",
        places=look.places,
        new=f"{new:.3g}",
        now=f"{now:.3g}",
        reason=made.reason,
    )
    move = made.move
    if move and look.window_seconds <= look.cost_seconds:
        pace, move = (
            sentence("{pace}, and the reservation ends before that", pace=pace),
            False,
        )
    act = _allowed(look.rules.when_faster, look) if move else RebalanceAction.NEVER
    if act is RebalanceAction.NEVER:
        why = (
            sentence("By the site's policy, jobs are not moved for speed.")
            if move
            else ""
        )
        reason = joined([sentence("Stays, though there is {pace}.", pace=pace), why])
    else:
        why = _why_not_done(look.rules.when_faster, look)
        reason = joined([sentence("Moves to {pace}.", pace=pace), why])
    return MoveVerdict(
        act=act,
        reason=reason,
        gain_seconds=made.gain_seconds,
        cost_seconds=made.cost_seconds,
        regret_seconds=regret,
    )


def _in_trouble(look: MoveSnapshot, trouble: GpuTrouble) -> MoveVerdict:
    """Keep the Job alive: at another place, if there is one and enough time."""
    words, policy = trouble.words, look.rules.when_in_trouble
    if look.step_seconds_new is None:
        return MoveVerdict(
            act=RebalanceAction.NEVER,
            reason=sentence(
                "{words}; no other GPUs fit: {no_plan}.",
                words=words,
                no_plan=look.no_plan,
            ),
        )
    if look.window_seconds <= look.cost_seconds:
        return MoveVerdict(
            act=RebalanceAction.NEVER,
            reason=sentence(
                "{words}; the reservation ends before a move would have paid.",
                words=words,
            ),
            cost_seconds=look.cost_seconds,
        )
    gain, must = None, trouble.breaks or look.step_seconds_now is None
    if look.step_seconds_now is not None:
        known = look.steps_left is not None
        within = int(look.window_seconds / max(look.step_seconds_now, 1e-9))
        steps = min(look.steps_left, within) if look.steps_left is not None else within
        gain = (look.step_seconds_now - look.step_seconds_new) * steps
        enough = look.cost_seconds * (1 + look.rules.margin_ratio)
        must = must or (known and gain > enough)
    act = _allowed(policy, look)
    if act is RebalanceAction.DO and not must:
        act = RebalanceAction.PROPOSE
    where = sentence(
        "it can move to {places}, at {step_seconds_new} s a step",
        places=look.places,
        step_seconds_new=f"{look.step_seconds_new:.3g}",
    )
    tail = {
        RebalanceAction.NEVER: sentence("By the site's policy it stays."),
        RebalanceAction.PROPOSE: _why_not_done(policy, look),
        RebalanceAction.DO: "",
    }[act]
    return MoveVerdict(
        act=act,
        reason=joined([sentence("{words}; {where}.", words=words, where=where), tail]),
        gain_seconds=gain,
        cost_seconds=look.cost_seconds,
    )


def _allowed(policy: RebalanceAction, look: MoveSnapshot) -> RebalanceAction:
    """Return the action that the policy allows for this Job."""
    unheard = look.trouble is not None and look.trouble.unheard
    held_back = look.restart is RestartMode.NOT or look.dearer or unheard
    if policy is RebalanceAction.DO and (held_back or look.companions):
        return RebalanceAction.PROPOSE
    return policy


def _why_not_done(policy: RebalanceAction, look: MoveSnapshot) -> str:
    """Return why an action is only proposed, and what a move would cost."""
    if look.companions:
        jobs = counted("{n} other job", "{n} other jobs", look.companions)
        return sentence(
            "Not done automatically: it would end {jobs} of the reservation.",
            jobs=jobs,
        )
    if policy is not RebalanceAction.DO:
        return ""
    if look.restart is RestartMode.NOT:
        return sentence(
            "Not done automatically: choose first how the job may be restarted."
        )
    if look.dearer:
        return sentence("Not done automatically: those GPUs cost more credits.")
    if look.trouble is not None and look.trouble.unheard:
        return sentence(
            "Not done automatically: the node is silent, the job may still run."
        )
    return ""
