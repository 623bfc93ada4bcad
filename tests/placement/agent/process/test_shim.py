"""The shim with real processes: how Jobs start, end, and leave nothing behind."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from placement.agent.local_runner import LocalRunner, halt_all
from placement.protocol.commands import JobLimits
from telemetry.proc_stat import PROC, read_stat
from tests.placement import nodes
from tests.placement.nodes import (
    ended,
    living,
    log_text,
    script_order,
    start,
    until,
)

ROOT = os.geteuid() == 0


def run(node, web, **changes):
    return start(replace(node, web_url=web.url), script_order(web, **changes))


def test_a_recipe_runs_to_its_end_and_tells_exit_code_and_last_lines(node):
    order = nodes.make_order(settings={"seconds": 0.3, "lines_per_second": 20})
    status = ended(start(node, order))
    assert (status["event"], status["exit_code"], status["signal"]) == (
        "exited",
        0,
        None,
    )
    assert status["last_lines"][-1] == "burn-in done"
    assert status["ended_at"] >= status["started_at"]
    assert status["stopped"] is False


def test_an_exit_code_is_told(node, serve):
    status = ended(run(node, serve("echo oh no\nexit 7\n")))
    assert (status["exit_code"], status["last_lines"]) == (7, ["oh no"])


def test_a_signal_is_told(node, serve):
    status = ended(run(node, serve("kill -SEGV $$\n")))
    assert (status["exit_code"], status["signal"]) == (None, signal.SIGSEGV)


def test_arguments_reach_the_script_as_words(node, serve):
    web = serve("#!/bin/sh\nprintf '%s|' \"$@\"\n")
    folder = run(node, web, argv=("a b", "$(date)", "*"))
    ended(folder)
    assert folder.log.read_text() == "a b|$(date)|*|"


def test_a_script_that_is_not_the_ordered_one_is_refused(node, serve):
    web = serve("echo the wrong one\n")
    folder = run(node, web, script_sha256="0" * 64)
    status = ended(folder)
    assert status["event"] == "refused"
    assert "not the one that was ordered" in status["reason"]
    assert folder.log_bytes() == 0


def test_a_script_is_fetched_again_when_the_web_comes_back(node, serve):
    """A portal that is upgraded is away for longer than an order is valid."""
    web = serve("echo here at last\n")
    web.down = True
    expires_at = time.time() + 0.5
    folder = run(node, web, expires_at=expires_at)
    until(lambda: web.refused and time.time() > expires_at + 1)
    assert not folder.read("status")
    web.down = False
    assert ended(folder)["last_lines"] == ["here at last"]


def test_a_job_that_waits_for_the_web_does_not_outlive_the_supervisor(node, serve):
    web = serve("echo never\n")
    web.down = True
    supervisor = subprocess.Popen(["sleep", "300"])
    settings = replace(node, web_url=web.url, supervisor_pid=supervisor.pid)
    folder = start(settings, script_order(web))
    until(lambda: web.refused)
    supervisor.kill()
    supervisor.wait()
    status = ended(folder)
    assert (status["event"], folder.log_bytes()) == ("refused", 0)
    assert "stopped before the script was fetched" in status["reason"]


def test_a_program_that_cannot_start_says_why_in_the_log(node, serve):
    folder = run(node, serve("#!/no/such/interpreter\n"))
    status = ended(folder)
    assert status["exit_code"] == 126
    told = folder.log.read_text()
    assert "cannot start: its first line names /no/such/interpreter, which is" in told


def test_the_environment_holds_nothing_of_ours(node, serve, monkeypatch):
    monkeypatch.setenv("SECRET_KEY", "very-secret")
    monkeypatch.setenv("GPUPORTAL_NODE_REDIS_URL", "redis://:password@broker")
    folder = run(
        node,
        serve("env\necho cwd=$(pwd)\n"),
        gpu_uuids=("GPU-a", "GPU-b"),
        gpu_indexes=(2, 3),
    )
    ended(folder)
    seen = folder.log.read_text()
    facts = dict(line.split("=", 1) for line in seen.splitlines())
    assert "very-secret" not in seen and "password" not in seen
    assert "token" not in seen.lower()
    assert facts["CUDA_VISIBLE_DEVICES"] == "GPU-a,GPU-b"
    assert facts["GPUPORTAL_GPU_COUNT"] == "2"
    assert facts["GPUPORTAL_JOB"] == "7"
    assert facts["cwd"] == str(folder.work)
    assert Path(facts["HOME"]).parent == folder.path.parents[1] / "homes"
    ours = {name for name in facts if name.startswith("GPUPORTAL_")}
    assert ours == {
        "GPUPORTAL_JOB",
        "GPUPORTAL_ATTEMPT",
        "GPUPORTAL_NODE",
        "GPUPORTAL_USER",
        "GPUPORTAL_GPUS",
        "GPUPORTAL_GPU_COUNT",
        "GPUPORTAL_SIMULATED",
        "GPUPORTAL_ENDS_AT",
        "GPUPORTAL_RUN",
        "GPUPORTAL_RESUMES_JOB",
        "GPUPORTAL_RESULTS",
    }


def test_a_job_on_simulated_gpus_sees_no_real_card(node, serve):
    folder = run(node, serve("echo [$CUDA_VISIBLE_DEVICES]\n"), simulated=True)
    ended(folder)
    assert folder.log.read_text() == "[]\n"


def test_only_the_logs_descriptor_is_passed(node, serve):
    folder = run(node, serve("ls -l /proc/self/fd | awk 'NF>8{print $9}'\n"))
    ended(folder)
    # 3 is ls's own descriptor of the folder.
    assert set(folder.log.read_text().split()) <= {"0", "1", "2", "3"}


def test_limits_hold(node, serve):
    limits = JobLimits(open_files=64, file_bytes=4096)
    folder = run(node, serve("ulimit -n\nulimit -c\nulimit -f\n"), limits=limits)
    ended(folder)
    assert folder.log.read_text().split() == ["64", "0", "8"]  # 512-byte blocks


def test_the_deadline_is_kept_by_the_shim_alone(node):
    due = time.time() + 1.0
    status = ended(start(node, nodes.make_order(deadline_at=due)))
    assert status["stopped"] is True
    assert "reservation's end" in status["reason"]
    # It ends on TERM, also before it has begun to listen for it.
    how = (status["exit_code"], status["signal"])
    assert how in ((0, None), (None, signal.SIGTERM))
    assert status["ended_at"] >= due
    # A busy machine starts it late, and it has no second beyond its end.
    assert status["ended_at"] - max(due, status["started_at"]) < 3


def test_an_order_that_is_moved_moves_the_deadline(node):
    now = time.time()
    order = nodes.make_order(deadline_at=now)
    runner = LocalRunner(node)
    folder = runner.accept(order, order.payload())
    folder.write("deadline", {"deadline_at": now + 3600, "issued_at": now + 0.1})
    runner.start(folder)
    # Half a second and more of looks at the clock.
    until(lambda: log_text(folder).count("\n") > 10)
    assert folder.read("status")["event"] == "started"
    folder.write("deadline", {"deadline_at": now + 1, "issued_at": now + 0.2})
    assert ended(folder)["stopped"] is True


def test_term_then_grace_then_kill(node, serve, marker):
    web = serve("trap 'echo not now' TERM\necho up\nwhile :; do sleep 0.1; done\n")
    folder = run(node, web, grace_seconds=1.0, argv=(marker,))
    until(folder.log_bytes)
    assert LocalRunner(node).stop(folder, "enough")
    status = ended(folder)
    assert status["ended_at"] - folder.read("stop")["at"] > 0.9
    assert (status["signal"], status["reason"]) == (signal.SIGKILL, "enough")
    assert status["stopped"] is True
    assert "not now" in folder.log.read_text()
    assert living(marker) == []


def test_a_job_that_ends_on_term_needs_no_kill(node, serve):
    web = serve(
        "trap 'echo saved; exit 0' TERM\necho up\nwhile :; do sleep 0.05; done\n"
    )
    folder = run(node, web, grace_seconds=3600.0)
    until(folder.log_bytes)
    LocalRunner(node).stop(folder, "enough")
    status = ended(folder)
    assert (status["exit_code"], status["stopped"]) == (0, True)
    assert status["last_lines"][-1] == "saved"


@pytest.mark.parametrize("how", ["exit 0", "exit 3", "sleep 60"])
def test_strays_in_sessions_of_their_own_are_killed(node, serve, marker, how, tmp_path):
    # A child, a grandchild in another session, and one that ignores signals.
    web = serve(
        f"sh -c 'sleep 300; : {marker}' &\n"
        f"setsid sh -c 'trap \"\" TERM HUP; while :; do sleep 0.1; done' {marker} &\n"
        f"(setsid setsid sh -c 'sleep 300; : {marker}' &)\n"
        f'until [ -e "$2" ]; do sleep 0.05; done\n{how}\n'
    )
    seen = tmp_path / "seen"
    folder = run(node, web, grace_seconds=0.5, argv=(marker, str(seen)))
    until(lambda: len(living(marker)) >= 4)
    seen.touch()
    if how == "sleep 60":
        LocalRunner(node).stop(folder, "enough")
    ended(folder)
    assert living(marker) == []


def test_a_fork_bomb_is_ended(node, serve, marker):
    web = serve(
        "f() { n=$1; [ $n -gt 0 ] || sleep 60; "
        'setsid sh -c "sleep 60; : $2" $2 & f $((n-1)) $2; }\n'
        "f 40 $1\n"
    )
    folder = run(node, web, grace_seconds=0.3, argv=(marker,))
    until(lambda: len(living(marker)) > 30)
    LocalRunner(node).stop(folder, "enough")
    ended(folder)
    assert living(marker) == []


def test_the_shim_outlives_whoever_started_it(node, serve, marker):
    web = serve("echo up\nsleep 60\n")
    order = script_order(web, argv=(marker,))
    code = (
        "import sys; from tests.placement.nodes import *; from pathlib import Path\n"
        "from placement.agent.job_folder import JobFolder\n"
        "settings = make_settings(Path(sys.argv[1]), web_url=sys.argv[2])\n"
        "LocalRunner(settings).start(JobFolder.at(Path(sys.argv[3])))\n"
        "print('started', flush=True); import time; time.sleep(60)\n"
    )
    settings = replace(node, web_url=web.url)
    folder = LocalRunner(settings).accept(order, order.payload())
    starter = subprocess.Popen(
        [
            sys.executable,
            "-c",
            code,
            str(node.token_file.parent),
            web.url,
            str(folder.path),
        ],
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert starter.stdout is not None
    assert starter.stdout.readline() == b"started\n"
    until(lambda: living(marker))
    os.killpg(starter.pid, signal.SIGKILL)
    starter.wait()
    time.sleep(0.5)
    assert living(marker) and LocalRunner(settings).alive(folder)
    LocalRunner(settings).stop(folder, "enough")
    ended(folder)


def test_the_same_folder_is_run_once(node):
    order = nodes.make_order()
    folder = start(node, order)
    LocalRunner(node).start(folder)
    LocalRunner(node).start(folder)
    until(lambda: folder.read("status"))

    def shims():
        return [p for p in living(str(folder.path)) if b"shim" in _line(p)]

    # The others see the lock and leave. The Job's first process is a copy until its
    # exec.
    until(lambda: len(shims()) == 1)
    kept = folder.read("shim")["pid"]
    time.sleep(0.5)
    until(lambda: shims() == [kept])
    LocalRunner(node).stop(folder, "enough")
    ended(folder)


def _line(pid):
    try:
        return (PROC / str(pid) / "cmdline").read_bytes()
    except OSError:
        return b""


def test_a_killed_shim_takes_the_jobs_first_process_with_it(node, serve, marker):
    folder = run(node, serve("exec sleep 300\n"), argv=())
    until(lambda: folder.read("shim").get("pgid"))
    leader = folder.read("shim")["pgid"]
    until(lambda: folder.read("status"))
    os.kill(folder.read("shim")["pid"], signal.SIGKILL)
    until(lambda: (found := read_stat(leader)) is None or found.dead)


def test_the_job_dies_with_the_supervisor(node, serve, marker):
    supervisor = subprocess.Popen(["sleep", "300"])
    web = serve("setsid sh -c 'trap \"\" TERM; sleep 300' $1 &\necho up\nsleep 300\n")
    settings = replace(node, web_url=web.url, supervisor_pid=supervisor.pid)
    folder = start(settings, script_order(web, argv=(marker,), grace_seconds=3600))
    until(lambda: living(marker))
    supervisor.kill()
    supervisor.wait()
    status = ended(folder)
    assert status["event"] == "lost"
    assert "stopped" in status["reason"]
    assert living(marker) == []


def test_a_supervisor_that_is_gone_already_ends_the_job_at_once(node):
    gone = subprocess.Popen(["true"])
    gone.wait()
    folder = start(replace(node, supervisor_pid=gone.pid), nodes.make_order())
    assert ended(folder)["event"] == "lost"


def test_a_term_without_a_word_means_that_the_machine_goes_down(node):
    folder = start(node, nodes.make_order())
    until(folder.log_bytes)
    os.kill(folder.read("shim")["pid"], signal.SIGTERM)
    assert ended(folder)["event"] == "lost"


def test_halt_all_ends_every_job_and_says_so(node):
    folders = [start(node, nodes.make_order(job=number)) for number in (1, 2)]
    for folder in folders:
        until(folder.log_bytes)
    assert halt_all(node.node_dir, reason="the portal stops") == 0
    for folder in folders:
        status = ended(folder)
        # burn-in ends cleanly on TERM
        assert (status["reason"], status["exit_code"]) == ("the portal stops", 0)


def test_a_job_can_add_to_its_log_and_not_change_what_is_there(node, serve):
    web = serve(
        "#!/usr/bin/env python3\n"
        "import fcntl, os\n"
        "print('gpuportal: first line', flush=True)\n"
        "for act in (lambda: os.ftruncate(1, 0), lambda: os.lseek(1, 0, 0),\n"
        "            lambda: os.pwrite(1, b'forged', 0)):\n"
        "    try:\n"
        "        act()\n"
        "        print('broken', flush=True)\n"
        "    except OSError:\n"
        "        pass\n"
        "flags = fcntl.fcntl(1, fcntl.F_GETFL)\n"
        "fcntl.fcntl(1, fcntl.F_SETFL, flags & ~os.O_APPEND)\n"
        "os.write(1, b'last line\\n')\n"
    )
    folder = run(node, web)
    ended(folder)
    assert folder.log.read_text() == "gpuportal: first line\nlast line\n"


def test_many_writers_lose_nothing_and_a_big_log_is_whole(node, serve):
    web = serve(
        "for n in 1 2 3 4; do (i=0; while [ $i -lt 500 ]; do echo $n $i; "
        "i=$((i+1)); done) & done; wait\n"
        "head -c 50000000 /dev/zero | tr '\\0' x; echo; echo end\n"
    )
    folder = run(node, web)
    status = ended(folder)
    assert status["log_bytes"] == folder.log_bytes()
    with folder.log.open("rb") as file:
        head = [file.readline() for _ in range(2000)]
        rest = file.read()
    assert sorted(head) == sorted(
        f"{n} {i}\n".encode() for n in (1, 2, 3, 4) for i in range(500)
    )
    assert len(rest) == 50_000_000 + 5
    assert rest.endswith(b"x\nend\n")


def test_a_log_over_its_ceiling_ends_the_job(node, serve):
    web = serve("while :; do echo 0123456789012345678901234567890123456789; done\n")
    folder = run(node, web, limits=JobLimits(log_bytes=100_000))
    status = ended(folder)
    assert "log grew over 100000 bytes" in status["reason"]
    assert status["stopped"] is False


def test_the_plan_lies_in_the_jobs_folder(node, serve):
    folder = run(node, serve("cat plan.json\n"), plan={"strategy": "ddp"})
    ended(folder)
    assert '"ddp"' in folder.log.read_text()


def test_a_simulated_gpu_is_claimed_for_the_jobs_first_process(node):
    from telemetry.agent.simulated_processes import read_claims

    nodes.write_simulation(node, ("GPU-node1-0", "GPU-node1-1"))
    order = nodes.make_order(
        simulated=True,
        claim_bytes_per_gpu=8 * nodes.GIB,
        claim_util_pct=85.0,
        gpu_uuids=("GPU-node1-0", "GPU-node1-1"),
        gpu_indexes=(0, 1),
    )
    folder = start(node, order)
    until(folder.log_bytes)
    (claim,) = read_claims(node.sim_dir, "node1")
    assert claim.gpus == order.gpu_uuids
    assert (claim.memory_bytes, claim.job) == (8 * nodes.GIB, 7)
    assert claim.pid == folder.read("shim")["pgid"]
    LocalRunner(node).stop(folder, "enough")
    ended(folder)
    assert read_claims(node.sim_dir, "node1") == []


def test_a_simulated_gpu_without_room_fails_the_job_as_cuda_would(node):
    nodes.write_simulation(node, ("GPU-node1-0",))
    order = nodes.make_order(simulated=True, claim_bytes_per_gpu=500 * nodes.GIB)
    folder = start(node, order)
    status = ended(folder)
    assert (status["event"], status["exit_code"]) == ("exited", 1)
    assert "out of memory" in folder.log.read_text()
    assert "burn-in" not in folder.log.read_text()


def test_the_log_hears_that_the_end_is_near_and_that_it_has_moved(node):
    now = time.time()
    order = nodes.make_order(deadline_at=now + 500, expires_at=now + 60)
    folder = start(node, order)
    until(lambda: "ends in 8 min" in log_text(folder))
    folder.write("deadline", {"deadline_at": now + 30, "issued_at": now + 0.1})
    until(lambda: folder.log.read_text().count("the reservation ends in") == 2)
    assert "SIGTERM then, SIGKILL 1 s later" in folder.log.read_text()
    LocalRunner(node).stop(folder, "enough")
    ended(folder)


def test_a_job_goes_on_from_the_checkpoint_of_another(node, serve):
    ended(run(node, serve("mkdir checkpoint; echo 17 > checkpoint/step\n")))
    script = 'echo "at $(cat checkpoint/step) of $GPUPORTAL_RESUMES_JOB"\n'
    second = run(node, serve(script), job=2, resume_job=7, resume_attempt=1)
    ended(second)
    lines = second.log.read_text().splitlines()
    assert lines == ["gpuportal: resumes from the checkpoint of job 7", "at 17 of 7"]
    third = run(node, serve("ls\n"), job=3, resume_job=9, resume_attempt=1)
    ended(third)
    told, *listed = third.log.read_text().splitlines()
    assert told.endswith(
        "job 9: it left none on this node; the job starts from the beginning"
    )
    assert "checkpoint" not in listed
