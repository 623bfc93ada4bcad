"""A language model from its folder to its answers, with a real server."""

import time

import pytest
from django.utils import timezone
from openai import NotFoundError, OpenAI, RateLimitError

from gpuportal.http import language_model_door
from placement.jobs import service as jobs
from placement.jobs.nodes import command_queue
from placement.jobs.tick import job_tick
from placement.language_models.service import (
    LanguageModelRequest,
    serve_language_model,
    set_callers,
)
from placement.protocol import signing
from reservations.accounts.api_tokens import create_token
from reservations.rules.lifecycle import State
from tests.factories import make_gpus, make_node, make_reservation
from tests.placement import nodes
from tests.placement.lab import send_frame
from tests.placement.serving.kitchen import token_of
from tests.placement.workspace.workspace_nodes import WorkspaceNode

# The door's tests run on both databases what it reads and writes.
pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.once,
    pytest.mark.timeout(1800),
]
LOAD_SECONDS = 600
"""The imports of the server take long on a machine with much to do."""
WORDS = [{"role": "user", "content": "a b c"}]


@pytest.fixture
def folder(tmp_path, fork_server):
    """A folder with a model, made before the node's worker runs."""
    path = tmp_path / "tiny-llama"
    fork_server.output(
        "import pathlib\n"
        "from tests.placement.language_models.tiny_models import write_tiny_llama\n"
        f"write_tiny_llama(pathlib.Path({str(path)!r}))\n"
    )
    return path


@pytest.fixture
def text_node(node, redis_client, live_asgi):
    """Node node1 with two Gpus, its worker running against the live site."""
    row = make_node("node1")
    gpus = make_gpus(2, row)
    here = nodes.make_settings(
        node.node_dir.parent, redis_url=node.redis_url, web_url=live_asgi
    )
    token_of(row, here)
    nodes.write_simulation(here, tuple(gpu.uuid for gpu in gpus))
    made = WorkspaceNode(here, redis_client)
    made.gpus = gpus
    yield made
    made.close()


def client_of(web, user, job, **options):
    """A client of the openai package with a token of the portal."""
    _, shown = create_token(
        user=user,
        label="t",
        scopes=(f"serve:{job.pk}",),
        days=1,
        now=timezone.now(),
    )
    return OpenAI(
        base_url=f"{web}/serve/{job.pk}/v1",
        api_key=shown,
        max_retries=0,
        timeout=LOAD_SECONDS,
        **options,
    )


def until_loaded(client):
    """Return the ids of /v1/models, once the server has the model."""
    end = time.monotonic() + LOAD_SECONDS
    while True:
        try:
            return [one.id for one in client.models.list()]
        except Exception as error:
            assert getattr(error, "status_code", 0) == 503, error
            assert time.monotonic() < end, error
            time.sleep(0.2)


def test_a_language_model_is_served_called_streamed_shared_and_stopped(
    folder, text_node, live_asgi, alice, bob, settings, monkeypatch
):
    counted = []
    monkeypatch.setattr(
        language_model_door, "add_tokens", lambda *words: counted.append(words)
    )
    reservation = make_reservation(alice, text_node.gpus, state=State.ACTIVE)
    settings.ALLOW_UNISOLATED_SCRIPTS = True
    send_frame(text_node.redis)
    job = serve_language_model(
        user=alice,
        asked=LanguageModelRequest(
            model=str(folder),
            well_known="tiny-gpt",
            context_tokens=128,
            sequences=2,
            precision="fp32",
            reservation_id=reservation.pk,
        ),
        now=timezone.now(),
    )
    row = job.language_model_endpoint
    assert (row.name, len(row.gpu_uuids), job.gpu_count) == ("tiny-llama", 1, 1)
    mine = client_of(live_asgi, alice, job)
    with pytest.raises(Exception, match="does not run yet"):
        mine.models.list()
    job_tick.tick(timezone.now())
    job.refresh_from_db()
    order = command_queue.start_order(job, now=timezone.now())
    assert order.gpu_uuids == tuple(row.gpu_uuids)
    assert text_node.desk.take(order.payload(), signing.sign(order.payload()))
    text_node.until_running(job)
    assert until_loaded(mine) == ["tiny-llama"]

    whole = mine.chat.completions.create(
        model="tiny-llama", messages=WORDS, max_tokens=5
    )
    assert whole.usage.completion_tokens == 5 and whole.choices[0].message.content
    text = mine.completions.create(model="tiny-llama", prompt="a b", max_tokens=4)
    assert text.usage.total_tokens == 6
    parts = list(
        mine.chat.completions.create(
            model="tiny-llama", messages=WORDS, max_tokens=6, stream=True
        )
    )
    assert len(parts) > 3, "each token is an event"
    with pytest.raises(NotFoundError, match="serves “tiny-llama”"):
        mine.chat.completions.create(model="gpt-4", messages=WORDS)

    theirs = client_of(live_asgi, bob, job)
    with pytest.raises(NotFoundError):
        theirs.models.list()
    set_callers(user=alice, job_id=job.pk, callers="anybody", now=timezone.now())
    assert until_loaded(theirs) == ["tiny-llama"]
    nodes.until(lambda: len(counted) == 4, what="the count of four calls")
    assert {pk for pk, _, _ in counted} == {alice.pk}
    *answered, refused_one = sorted(count for _, count, _ in counted)
    assert answered == [6, 8, 9] and refused_one > 9, "a refused body counts, too"
    settings.SERVE_TOKENS_PER_MINUTE = 0
    with pytest.raises(RateLimitError) as refused:
        mine.completions.create(model="tiny-llama", prompt="a b", max_tokens=4)
    assert refused.value.code == "too-many-tokens"
    assert "The limit is 0 per person." in refused.value.message

    jobs.stop(job_id=job.pk, user=alice, now=timezone.now())
    text_node.stop(job)
    with pytest.raises(Exception, match="is over"):
        mine.models.list()
