"""Terminals, ssh, workspaces and served models refuse an operator without a factor."""

import contextlib
from dataclasses import replace
from datetime import timedelta
from urllib.parse import parse_qs, urlsplit

import pytest
from django.test import Client
from django.utils import timezone

from gpuportal.http import ssh_door, terminal_door
from placement.models import Job, Workspace
from placement.workspace import service as workspaces
from reservations.accounts.second_factors.rules import FactorPolicy
from reservations.models import User
from reservations.rules.lifecycle import State
from reservations.web.session_consumer import user_of_session
from telemetry.protocol.coded_error import CodedError
from tests.factories import make_gpu, make_membership, make_reservation

pytestmark = pytest.mark.django_db(transaction=True)


def test_no_door_opens_after_the_grace(omar, settings):
    settings.LOGIN_SETTINGS = replace(
        settings.LOGIN_SETTINGS, second_factor=FactorPolicy("required")
    )
    settings.WORKSPACE_ORIGIN = "https://*.work.example.org"
    client = Client()
    client.force_login(omar)
    key, now = client.session.session_key, timezone.now()
    make_membership(omar, "lab")
    gpu = make_gpu()
    hour = timedelta(hours=1)
    held = make_reservation(omar, [gpu], now - hour, now + hour, state=State.ACTIVE)
    job = Job.objects.create(
        reservation=held,
        owner=omar,
        name="JupyterLab",
        kind=Job.Kind.WORKSPACE,
        recipe="workspace",
        node=gpu.node,
        state=Job.State.RUNNING,
        attempt=1,
    )
    space = Workspace.objects.create(job=job, app="jupyter-lab", label="a" * 24)
    begun = workspaces.start_entry(
        user=omar, session_key=key, workspace_pk=space.pk, now=now
    )
    (word,) = parse_qs(urlsplit(begun.address).query)["code"]
    cookie = workspaces.use_code(word, space.label, now=now)
    doors = [
        lambda: ssh_door._Visit("", key, held.pk, "").target(),
        lambda: terminal_door._visit(key, held.pk),
        lambda: workspaces.visit_target(cookie, space.label, now=timezone.now()),
    ]
    served = f"/serve/{job.pk}/stats"

    for door in doors:
        with contextlib.suppress(CodedError):
            door()
    # The grace begins at any door.
    omar.refresh_from_db()
    assert omar.second_factor_asked_at is not None
    assert workspaces.visit_target(cookie, space.label, now=now)
    assert client.get(served).status_code == 404
    needed = "second-factor-needed"
    User.objects.update(second_factor_asked_at=now - timedelta(days=15))
    for door in doors:
        with pytest.raises(CodedError) as refused:
            door()
        assert refused.value.code == needed
    answer = client.get(served)
    assert (answer.status_code, answer.json()["code"]) == (403, needed)
    # Pages that only show stay live.
    assert user_of_session(key) == omar
