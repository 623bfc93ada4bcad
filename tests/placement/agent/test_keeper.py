"""The keeper with real shims, a real broker and a web over HTTP."""

import json
import os
import signal
import time
from dataclasses import replace

import pytest
import redis

from placement.agent import keeper as rooms
from placement.agent.keeper import JobKeeper
from placement.agent.local_runner import LocalRunner
from placement.agent.storage.live_log import BACKLOG_BYTES, RATE_BYTES_PER_SECOND
from placement.protocol.events import parse_fact
from tests.placement import nodes
from tests.placement.nodes import ended, living, make_order, script_order, until


def messages(client, stream):
    return [json.loads(fields[b"m"]) for _, fields in client.xrange(stream)]


def facts(client, event=None):
    said = [m for m in messages(client, "facts.node1") if m["kind"] == "job"]
    return [m for m in said if event in (None, m["event"])]


def accept(settings, order):
    return LocalRunner(settings).accept(order, order.payload())


@pytest.fixture
def keep(node):
    made = []

    def make(**changes):
        keeper = JobKeeper(replace(node, **changes))
        keeper.start()
        made.append(keeper)
        return keeper

    yield make
    for keeper in made:
        keeper.stop()


def test_an_accepted_job_is_started_logged_and_told(node, keep, redis_client, serve):
    web = serve("echo hello\nexit 3\n")
    keep(web_url=web.url)
    accept(node, script_order(web))
    until(lambda: messages(redis_client, "log.node1"))
    until(lambda: facts(redis_client, "exited"))
    started, exited = facts(redis_client)
    assert (started["event"], exited["event"]) == ("started", "exited")
    assert (exited["exit_code"], exited["last_lines"]) == (3, ["hello"])
    (line,) = messages(redis_client, "log.node1")
    assert (line["offset"], line["bytes"], line["data"]) == (0, 6, "hello\n")
    until(lambda: web.log_of(7) == b"hello\n")
    for fact in (started, exited):
        parse_fact(fact)


def test_one_step_starts_a_job_and_one_sends_the_first_byte_of_its_log(
    node, redis_client, serve
):
    """There are five steps in a second."""
    web = serve("while [ ! -e go ]; do sleep 0.05; done\necho up\n")
    keeper = JobKeeper(replace(node, web_url=web.url))
    folder = accept(node, script_order(web))
    keeper.step()
    until(lambda: folder.read("status").get("event") == "started")
    keeper.step()
    assert not messages(redis_client, "log.node1")
    (folder.work / "go").touch()
    until(folder.log_bytes)
    keeper.step()
    (line,) = messages(redis_client, "log.node1")
    assert line["data"] == "up\n"
    assert rooms.STEP_SECONDS <= 0.2
    ended(folder)
    keeper.stop()


def test_beliefs_name_what_runs_and_what_ended_lately(
    node, keep, redis_client, monkeypatch
):
    monkeypatch.setattr(rooms, "BELIEF_SECONDS", 0.3)
    keep()
    accept(node, make_order(job=1))
    accept(node, make_order(job=2, settings={"seconds": 0, "lines_per_second": 1}))

    def told():
        beliefs = [
            m for m in messages(redis_client, "facts.node1") if m["kind"] == "jobs"
        ]
        last = parse_fact(beliefs[-1]) if beliefs else None
        return last if last and last.ended and last.running[0].started_at else None

    belief = until(told)
    assert [(r.job, r.attempt) for r in belief.running] == [(1, 1)]
    assert [(f.job, f.event) for f in belief.ended] == [(2, "exited")]
    deadline = LocalRunner(node).folder(1, 1).read("order")["deadline_at"]
    assert belief.running[0].deadline_at == deadline


def test_a_restarted_worker_finds_its_jobs_again(
    node, keep, redis_client, serve, marker
):
    web = serve("echo one\nwhile [ ! -e go ]; do sleep 0.05; done\necho two\n")
    first = keep(web_url=web.url)
    folder = accept(node, script_order(web, argv=(marker,)))
    until(lambda: facts(redis_client, "started"))
    first.stop()
    assert living(marker)
    (folder.work / "go").touch()
    until(lambda: folder.read("status").get("event") == "exited")
    assert not facts(redis_client, "exited")
    keep(web_url=web.url)
    until(lambda: facts(redis_client, "exited"))
    assert len(facts(redis_client, "started")) == 1
    until(lambda: web.log_of(7) == b"one\ntwo\n")


def test_a_job_whose_shim_was_killed_is_lost_and_its_strays_ended(
    node, keep, redis_client, serve, marker
):
    web = serve("setsid sh -c 'sleep 300' $1 &\nsleep 300\n")
    keep(web_url=web.url)
    folder = accept(node, script_order(web, argv=(marker,)))
    until(lambda: living(marker))
    until(lambda: facts(redis_client, "started"))
    os.kill(folder.read("shim")["pid"], signal.SIGKILL)
    (lost,) = until(lambda: facts(redis_client, "lost"))
    assert "is gone" in lost["reason"]
    until(lambda: living(marker) == [])


def test_facts_wait_for_a_broker_that_is_away(node, keep, redis_client, valkey_url):
    broken = keep(redis_url="redis://127.0.0.1:1")
    folder = accept(node, make_order(settings={"seconds": 0, "lines_per_second": 1}))
    until(lambda: folder.read("status").get("event") == "exited")
    time.sleep(0.5)
    assert "ended" not in folder.read("reported")
    broken.stop()
    keep()
    until(lambda: facts(redis_client, "exited"))
    assert [fact["event"] for fact in facts(redis_client)] == ["started", "exited"]


def test_a_broker_that_hangs_does_not_stop_the_keeper(node, keep, monkeypatch):
    import socket

    monkeypatch.setattr(rooms, "BROKER_TIMEOUT_SECONDS", 0.3)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        keep(redis_url=f"redis://127.0.0.1:{silent.getsockname()[1]}")
        folder = accept(
            node, make_order(settings={"seconds": 0, "lines_per_second": 1})
        )
        until(lambda: folder.read("status").get("event") == "exited")


def test_the_upload_goes_on_where_it_was_after_an_outage(
    node, keep, serve, redis_client
):
    web = serve("echo one\nwhile [ ! -e go ]; do sleep 0.05; done\necho two\n")
    keep(web_url=web.url)
    folder = accept(node, script_order(web))
    until(lambda: web.log_of(7) == b"one\n")
    web.down = True
    (folder.work / "go").touch()
    until(lambda: facts(redis_client, "exited"))
    time.sleep(0.8)
    assert web.log_of(7) == b"one\n"
    web.down = False
    until(lambda: web.log_of(7) == b"one\ntwo\n")
    until(lambda: folder.read("reported").get("uploaded"))


def test_a_web_that_has_part_of_the_log_gets_the_rest_only(node, keep, serve):
    web = serve("printf 0123456789\n")
    web.logs["/node/v1/jobs/7/log"] = b"01234"
    keep(web_url=web.url)
    folder = accept(node, script_order(web))
    until(lambda: folder.read("reported").get("uploaded"))
    assert web.log_of(7) == b"0123456789"


def test_a_million_lines_hurt_neither_broker_nor_web(node, keep, serve, redis_client):
    web = serve("#!/bin/sh\nseq -f 'step=%.0f loss=1.0 and some more words' 1000000\n")
    began = time.monotonic()
    keeper = keep(web_url=web.url)
    folder = accept(node, script_order(web))
    until(lambda: facts(redis_client, "exited"))
    seconds = time.monotonic() - began
    pieces = messages(redis_client, "log.node1")
    live_bytes = sum(piece["bytes"] for piece in pieces)
    size = folder.log_bytes()
    assert size > 35_000_000
    # The longer a busy machine takes, the more may pass.
    assert live_bytes <= BACKLOG_BYTES + seconds * RATE_BYTES_PER_SECOND
    assert redis_client.xlen("log.node1") <= 400
    assert max(len(json.dumps(piece)) for piece in pieces) < 512 * 1024
    offsets = [piece["offset"] for piece in pieces]
    assert offsets == sorted(offsets)
    assert pieces[-1]["data"].splitlines()[-1].startswith("step=1000000 ")
    for piece in pieces:
        with folder.log.open("rb") as file:
            file.seek(piece["offset"])
            assert file.read(piece["bytes"]).decode() == piece["data"]
    until(lambda: folder.read("reported").get("uploaded"))
    assert len(web.log_of(7)) == size
    assert keeper.kept["7-1"].ended


def test_a_bad_folder_never_blocks_the_rest(node, keep, redis_client):
    jobs = node.node_dir / "jobs"
    LocalRunner(node).prepare()
    (jobs / "1-1").mkdir()
    (jobs / "1-1" / "status.json").write_text("{ half a fi")
    (jobs / "notes").mkdir()
    keep()
    accept(node, make_order(settings={"seconds": 0, "lines_per_second": 1}))
    until(lambda: facts(redis_client, "exited"))


def test_old_folders_are_removed_a_week_after_their_end(
    node, keep, serve, redis_client
):
    web = serve()
    web.down = True
    keeper = keep(web_url=web.url)
    folder = accept(node, make_order(settings={"seconds": 0, "lines_per_second": 1}))
    until(lambda: facts(redis_client, "exited"))
    until(lambda: folder.read("reported").get("ended"))
    # The only copy of its log.
    assert keeper.tidy(time.time() + 8 * 86_400) == 0
    web.down = False
    until(lambda: folder.read("reported").get("uploaded"))
    assert keeper.tidy(time.time() + 6 * 86_400) == 0
    assert keeper.tidy(time.time() + 8 * 86_400) == 1
    assert not folder.path.exists()


def test_an_accepted_job_that_is_stopped_never_starts(node, keep, redis_client):
    folder = accept(node, make_order())
    folder.write("stop", {"reason": "changed my mind", "at": time.time()})
    keep()
    (fact,) = until(lambda: facts(redis_client, "exited"))
    assert fact["stopped"] and fact["reason"] == "changed my mind"
    assert folder.log_bytes() == 0


def test_the_nodes_broker_user_needs_its_own_keys_only(node, keep, redis_client):
    redis_client.execute_command(
        "ACL",
        "SETUSER",
        "node1",
        "on",
        ">pw",
        "resetkeys",
        "resetchannels",
        "-@all",
        "+xadd",
        "+hello",
        "+client",
        "+ping",
        "+select",
        "~facts.node1",
        "~log.node1",
        "~raw.node1",
    )
    path = node.redis_url.removeprefix("unix://").partition("?")[0]
    keep(redis_url=f"unix://node1:pw@{path}?db=0")
    accept(node, make_order(settings={"seconds": 0, "lines_per_second": 1}))
    until(lambda: facts(redis_client, "exited"))
    with (
        redis.Redis.from_url(f"unix://node1:pw@{path}?db=0") as own,
        pytest.raises(redis.exceptions.NoPermissionError),
    ):
        own.xadd("facts.node2", {"m": "{}"})
    redis_client.execute_command("ACL", "DELUSER", "node1")


def test_wait_helper_is_not_fooled():
    with pytest.raises(AssertionError):
        nodes.until(lambda: False, 0.05)
