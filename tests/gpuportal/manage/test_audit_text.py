"""Every verb of the audit log has words, and every link of the log opens."""

import ast
from collections.abc import Iterator
from datetime import timedelta
from functools import cache
from itertools import product
from pathlib import Path

import pytest
from django.utils import timezone

from gpuportal.manage.audit_text import PAGES, SENTENCES, urls_of
from reservations.models import (
    Closure,
    Offer,
    OpenidClient,
    TreeChange,
)
from reservations.operations.bulk_acts import BulkAct
from telemetry.models import Node, NodeJoin
from tests.factories import make_reservation
from tests.house.walk import APPS, ROOT

WRITERS = {"audit_act": "", "audit": "reservation."}
"""The functions that write the log, with what they put before the verb."""
OWN_WORDS = ("response.", "admin.")
"""Verbs that ``sentence_of`` reads by their parts."""


@cache
def trees() -> dict[Path, ast.Module]:
    """Return the modules of the product that can write the log."""
    found = {}
    for path in (path for app in APPS for path in (ROOT / app).rglob("*.py")):
        text = path.read_text()
        if "audit" in text or "verb" in text:
            found[path] = ast.parse(text)
    return found


@cache
def calls() -> dict[str, list[tuple[ast.Call, tuple[ast.AST, ...]]]]:
    """Return every call by the function's last name, with the nodes around it."""
    found: dict[str, list[tuple[ast.Call, tuple[ast.AST, ...]]]] = {}

    def walk(node: ast.AST, around: tuple[ast.AST, ...]) -> None:
        if isinstance(node, ast.Call):
            name = getattr(node.func, "id", getattr(node.func, "attr", ""))
            found.setdefault(name, []).append((node, around))
        for below in ast.iter_child_nodes(node):
            walk(below, (*around, node))

    for tree in trees().values():
        walk(tree, ())
    return found


def argument(call: ast.Call, name: str, place: int) -> ast.expr | None:
    named = [word.value for word in call.keywords if word.arg == name]
    return (named or [*call.args[place : place + 1], None])[0]


def texts(value: ast.expr | None, around: tuple[ast.AST, ...]) -> Iterator[str]:
    """Yield the texts that an expression may have, "?" for one that is not known."""
    if isinstance(value, ast.Constant):
        yield str(value.value)
    elif isinstance(value, ast.IfExp):
        yield from texts(value.body, around)
        yield from texts(value.orelse, around)
    elif isinstance(value, ast.JoinedStr):
        parts = [
            list(texts(getattr(part, "value", None), around))
            if isinstance(part, ast.FormattedValue)
            else [str(getattr(part, "value", ""))]
            for part in value.values
        ]
        yield from ("".join(words) for words in product(*parts))
    elif isinstance(value, ast.Name):
        yield from named(value.id, around)
    else:
        yield "?"


def named(name: str, around: tuple[ast.AST, ...]) -> Iterator[str]:
    """Yield the texts that a variable may have: assigned, or passed by callers."""
    known = False
    for scope in reversed(around):
        if not isinstance(scope, ast.FunctionDef | ast.Module):
            continue
        for node in ast.walk(scope):
            if isinstance(node, ast.Assign) and any(
                isinstance(target, ast.Name) and target.id == name
                for target in node.targets
            ):
                known = True
                yield from texts(node.value, around)
        if isinstance(scope, ast.FunctionDef) and not known:
            args = [arg.arg for arg in scope.args.args]
            if name in (*args, *(arg.arg for arg in scope.args.kwonlyargs)):
                place = args.index(name) if name in args else 99
                for call, there in calls().get(scope.name, ()):
                    if scope.name.startswith("_") and there[0] is not around[0]:
                        continue
                    passed = argument(call, name, place)
                    if passed is not None:
                        known = True
                        yield from texts(passed, there)
        if known:
            return
    yield "?"


def written_verbs() -> set[str]:
    """Return the verbs that the product writes, as far as its text says."""
    found = set()
    for name, before in WRITERS.items():
        for call, around in calls()[name]:
            verb = argument(call, "verb", 0)
            if verb is not None:
                found |= {before + text for text in texts(verb, around)}
    return found


CHOSEN = {
    "gpu.?": BulkAct,
    "node.gate-?": Node.GateMode,
    "tree.?": TreeChange.Kind,
    "offer.?": [state for state in Offer.State if state != Offer.State.OPEN],
    "?.ended": ("waiting", "series", "token"),
}
"""Verbs with a part that is chosen while the portal runs, and its values."""


@pytest.mark.pure
def test_every_verb_that_is_written_has_words():
    found = written_verbs()
    # The walk finds what it should: constants, parameters and parts of a text.
    known = {"reservation.booking-undone", "pool.made", "waiting.placed"}
    assert known <= found
    assert len([verb for verb in found if "?" not in verb]) > 100
    open_ends = {verb for verb in found if "?" in verb and verb != "?"}
    open_ends = {verb for verb in open_ends if not verb.startswith(OWN_WORDS)}
    assert open_ends == set(CHOSEN)
    found |= {
        verb.replace("?", str(part)) for verb, parts in CHOSEN.items() for part in parts
    }
    missing = {
        verb
        for verb in found
        if "?" not in verb and verb not in SENTENCES and not verb.startswith(OWN_WORDS)
    }
    assert not missing


@pytest.mark.django_db
@pytest.mark.once
def test_no_link_of_the_log_is_dead_for_an_operator(client, alice, omar, settings):
    settings.OPENID_PROVIDER = True
    now = timezone.now()
    booked = make_reservation(alice)
    gpu = booked.allocations.get().gpu

    def closure(**fields: object) -> Closure:
        return Closure.objects.create(
            kind="blackout",
            scope="gpus",
            reason="power",
            start=now,
            end=now + timedelta(hours=1),
            created_by=omar,
            **fields,
        )

    rows = {
        "reservation": booked,
        "user": alice,
        "person": alice,
        "gpu": gpu,
        "pool": gpu.pool,
        "change": TreeChange.objects.create(actor=omar, reason="r", kind="edit"),
        "closure": closure(),
        "openid_client": OpenidClient.objects.create(client_id="wiki", name="Wiki"),
        "node_join": NodeJoin.objects.create(
            public_id="a", secret_hash="b", name="n", created_at=now, expires_at=now
        ),
    }
    ended = closure(cancelled_at=now)
    subjects = {f"{kind}:{row.pk}" for kind, row in rows.items()}
    gone = {f"closure:{ended.pk}", "openid_client:99999", "series:1", "policy:booking"}
    urls = urls_of(subjects | gone)
    assert set(urls) == subjects
    # The pages of these two need results, and have tests of their own.
    assert set(rows) == set(PAGES) - {"job", "replay"}
    client.force_login(omar)
    for subject, url in urls.items():
        assert client.get(url).status_code == 200, subject
