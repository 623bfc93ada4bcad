"""kill -9 of a Job's own processes, and of its shim, at each state; odd Jobs."""

import json
import os
import re
import signal
import sys
import urllib.parse
from dataclasses import replace
from pathlib import Path

import pytest

from placement.agent.keeper import JobKeeper
from placement.agent.local_runner import LocalRunner
from placement.protocol.launchers import Launcher
from tests.placement.nodes import (
    ended,
    living,
    log_text,
    script_order,
    start,
    until,
)

RANKS = (
    "setsid sh -c 'trap \"\" TERM; while :; do sleep 0.1; done' $1 &\n"
    "sh -c 'while :; do sleep 0.1; done' $1 &\n"
    "trap 'echo told' TERM\necho up\nwhile :; do sleep 0.05; done\n"
)
TORCHRUN = """
import os, time
# In one piece: two ranks write, and nothing is buffered.
os.write(1, f"rank {os.environ['RANK']} {os.getpid()}\\n".encode())
time.sleep(60)
"""


@pytest.mark.parametrize("state", ["running", "stopping"])
def test_a_job_whose_first_process_is_killed_ends_with_all_of_it(
    node, serve, marker, state
):
    web = serve(RANKS)
    order = script_order(web, argv=(marker,), grace_seconds=30)
    folder = start(replace(node, web_url=web.url), order)
    until(lambda: len(living(marker)) >= 3)
    until(folder.log_bytes)
    if state == "stopping":
        LocalRunner(node).stop(folder, "enough")
        until(lambda: b"told" in folder.log.read_bytes())
    os.kill(folder.read("shim")["pgid"], signal.SIGKILL)
    status = ended(folder)
    assert (status["event"], status["signal"]) == ("exited", signal.SIGKILL)
    stopped = (True, "enough") if state == "stopping" else (False, "")
    assert (status["stopped"], status["reason"]) == stopped
    assert living(marker) == []


def test_a_rank_that_is_killed_ends_the_whole_training(node, serve, marker):
    web = serve(TORCHRUN)
    order = script_order(
        web,
        argv=(marker,),
        launcher=Launcher.TORCHRUN,
        gpu_uuids=("a", "b"),
        gpu_indexes=(0, 1),
        environment_folder=str(Path(sys.executable).parent),
    )
    folder = start(replace(node, web_url=web.url), order)

    def ranks():
        found = re.findall(r"^rank (\d+) (\d+)\n", log_text(folder), re.MULTILINE)
        return {int(rank): int(pid) for rank, pid in found}

    until(lambda: len(ranks()) == 2)
    os.kill(ranks()[1], signal.SIGKILL)
    status = ended(folder)
    assert (status["event"], status["stopped"]) == ("exited", False)
    assert status["exit_code"] not in (0, None)
    assert "SIGKILL" in folder.log.read_text()
    assert living(marker) == []


@pytest.mark.parametrize("state", ["starting", "stopping"])
def test_a_job_whose_shim_is_killed_is_lost_in_every_state(
    node, serve, marker, redis_client, state
):
    web = serve(RANKS)
    web.down = state == "starting"
    keeper = JobKeeper(replace(node, web_url=web.url))
    order = script_order(web, argv=(marker,), grace_seconds=30)
    folder = LocalRunner(node).accept(order, order.payload())
    keeper.start()
    shim = until(lambda: folder.read("shim"))["pid"]
    if state == "stopping":
        until(folder.log_bytes)
        LocalRunner(node).stop(folder, "enough")
        until(lambda: b"told" in folder.log.read_bytes())
    os.kill(shim, signal.SIGKILL)

    def lost():
        entries = redis_client.xrange("facts.node1")
        facts = [json.loads(fields[b"m"]) for _, fields in entries]
        return [fact for fact in facts if fact.get("event") == "lost"]

    (fact,) = until(lost)
    assert "is gone" in fact["reason"]
    until(lambda: living(marker) == [])
    web.down = False
    keeper.step()
    assert living(marker) == [], "it is not started anew by itself"
    keeper.stop()


# --- odd Jobs, through a whole portal --------------------------------------------

NAME = "mein erster Versuch ☃ 'x'; rm -rf $HOME"
WORDS = ("a b", "ünïcode ☃.txt", "$(date)", "*", "-n", "")
BINARY = (
    "printf '%s|' \"$@\"\n"
    "head -c 300000 /dev/urandom\n"
    "printf '\\0\\033]0;title\\007\\033[2J\\377\\376<script>\\n'\n"
    "cat /dev/zero | head -c 70000\n"
    "printf '\\nstep=3 loss=0.5\\nlast line\\n'\n"
)


@pytest.mark.timeout(600)  # it may be the one for which the portal starts
def test_odd_names_odd_words_and_a_log_of_bytes(running_portal):
    number = running_portal.launch(BINARY, name=NAME, arguments=WORDS)
    job = running_portal.reaches(number, "done", "failed")
    assert (job["state"], job["name"]) == ("done", NAME)
    whole = (running_portal.folder(number) / "log").read_bytes()
    assert whole.startswith("".join(f"{word}|" for word in WORDS).encode())
    until(
        lambda: running_portal.log_of(number) == whole, what="every byte at the portal"
    )
    shown, offset = "", 0
    while offset < len(whole):
        piece = running_portal.ask(
            "GET", f"jobs/{number}/log?offset={offset}&length=100000"
        )
        assert piece["size"] == len(whole)
        shown, offset = shown + piece["data"], offset + piece["bytes"]
    assert offset == len(whole)
    assert not {"\0", "\x07", "\x9b"} & set(shown)
    assert "\x1b]" not in shown and "\x1b[2J" not in shown
    assert "last line" in running_portal.job(number)["last_lines"][-1]
    (row,) = until(
        # The portal's tick may read the log just now.
        lambda: running_portal.ask("GET", f"jobs/{number}/numbers")["rows"],
        what="the numbers of the log",
    )
    assert row["loss"] == 0.5
    found = running_portal.ask(
        "GET", f"jobs?{urllib.parse.urlencode({'state': 'done'})}"
    )
    assert number in [item["id"] for item in found["jobs"]]
