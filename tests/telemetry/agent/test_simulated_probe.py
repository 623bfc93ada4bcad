"""Simulated Gpus with real processes on them."""

import json
import multiprocessing
import os
import subprocess
import time
from pathlib import Path

import pytest

from telemetry.agent.simulated_probe import SimulatedProbe, drop_claim, write_claim
from telemetry.agent.simulated_processes import claims_dir
from telemetry.proc_stat import read_stat
from telemetry.protocol.errors import (
    ClaimRefused,
    ProbeUnavailable,
    SimulatedOutOfMemory,
)
from telemetry.protocol.hardware import Backend, HostCapacity, NodeInfo
from telemetry.protocol.sample import SCRIPTED_PIDS, GpuAnswer, NodeSample

pytestmark = pytest.mark.pure

GIB = 2**30
NODE = "node-a"


def scripted_gpu(index: int, **changes: object) -> dict:
    return {
        "uuid": f"GPU-{index}",
        "index": index,
        "name": "Simulated A100",
        "gpu_class": "A100 80GB",
        "memory_total_bytes": 80 * GIB,
        "power_limit_watts": 400.0,
        "slowdown_celsius": 90.0,
        "sm_clock_max_mhz": 1410,
    } | changes


def actor(**changes: object) -> dict:
    return {
        "gpu": "GPU-0",
        "from": time.time() - 300,
        "until": None,
        "user": "alice",
        "uid": 2001,
        "command": "python train.py",
        "memory_bytes": 30 * GIB,
        "util_pct": 85,
        "wobble_pct": 5,
        "pid": 40_007,
        "job": None,
    } | changes


def write(folder: Path, *, gpus: int | list = 2, **more: object) -> None:
    """Write the node's file, as the demo lab does."""
    cards = [scripted_gpu(n) for n in range(gpus)] if isinstance(gpus, int) else gpus
    draft = folder / ".draft"
    draft.write_text(json.dumps({"epoch": 0, "gpus": cards, "actors": [], **more}))
    draft.replace(folder / f"{NODE}.json")


def opened(folder: Path) -> SimulatedProbe:
    probe = SimulatedProbe(folder, NODE)
    probe.open()
    return probe


def test_a_node_has_the_gpus_that_its_file_says(tmp_path) -> None:
    write(tmp_path, gpus=3, fast_links=[["GPU-0", "GPU-1"]])
    info = SimulatedProbe(tmp_path, NODE).open()
    assert (info.node, info.backend) == (NODE, Backend.SIMULATED)
    assert [x.uuid for x in info.gpus] == ["GPU-0", "GPU-1", "GPU-2"]
    assert info.fast_links == (("GPU-0", "GPU-1"),)
    assert NodeInfo.from_message(info.to_message(at=1.0), node=NODE) == info


def test_a_simulated_machine_has_memory_for_its_gpus(tmp_path) -> None:
    write(tmp_path, gpus=2)
    host = opened(tmp_path).info.host
    gpus = opened(tmp_path).info.gpus
    assert host.memory_total_bytes == 2 * sum(x.memory_total_bytes for x in gpus)
    assert 0 < host.memory_free_bytes < host.memory_total_bytes
    write(tmp_path, host={"memory_total_bytes": 8 * GIB})
    assert opened(tmp_path).info.host == HostCapacity(8 * GIB)


def test_scripted_processes_show_with_memory_and_load(tmp_path) -> None:
    write(tmp_path, actors=[actor()])
    busy, idle = opened(tmp_path).read(time.time()).gpus
    (process,) = busy.processes
    assert (process.user, process.uid, process.memory_bytes) == (
        "alice",
        2001,
        30 * GIB,
    )
    assert 70 <= process.sm_pct <= 100
    assert busy.memory_used_bytes >= 30 * GIB
    assert busy.power_watts > 250
    assert (idle.util_pct, idle.processes) == (0, ())


def test_a_scripted_pid_can_never_be_that_of_a_real_process(tmp_path) -> None:
    write(tmp_path, actors=[actor(pid=os.getpid())])
    (process,) = opened(tmp_path).read(time.time()).gpus[0].processes
    assert process.pid > SCRIPTED_PIDS
    with pytest.raises(ProcessLookupError):
        os.kill(process.pid, 0)


def test_scripted_processes_come_and_go_with_the_time(tmp_path) -> None:
    now = time.time()
    write(tmp_path, actors=[actor(**{"from": now + 10, "until": now + 20})])
    probe = opened(tmp_path)
    there = [
        len(probe.read(now + later).gpus[0].processes) for later in (9, 10, 19, 20)
    ]
    assert there == [0, 1, 1, 0]


def test_a_lost_gpu_is_told_as_lost_and_the_others_go_on(tmp_path) -> None:
    write(tmp_path, gpus=[scripted_gpu(0, lost=True), scripted_gpu(1)])
    lost, fine = opened(tmp_path).read(time.time()).gpus
    assert (lost.state, lost.util_pct) == (GpuAnswer.LOST, None)
    assert fine.state is GpuAnswer.OK


def test_a_changed_file_is_taken_over_and_a_broken_one_is_not(tmp_path, capsys) -> None:
    write(tmp_path, gpus=1)
    probe = opened(tmp_path)
    first = probe.info
    write(tmp_path, gpus=2)
    assert len(probe.read(time.time()).gpus) == 2
    assert probe.info is not first
    (tmp_path / f"{NODE}.json").write_text("{")
    assert len(probe.read(time.time()).gpus) == 2
    assert len(probe.read(time.time()).gpus) == 2
    assert capsys.readouterr().err.count("keeping the old script") == 1
    (tmp_path / f"{NODE}.json").unlink()
    assert len(probe.read(time.time()).gpus) == 2


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "no file"),
        ("{", "not JSON"),
        ('{"gpus": []}', "gpus: must have at least 1"),
        ('{"gpus": [{"uuid": 3}]}', r"gpus\[0\].uuid: not text"),
    ],
)
def test_a_node_without_a_good_file_is_one_clear_line(tmp_path, text, words) -> None:
    if text is not None:
        (tmp_path / f"{NODE}.json").write_text(text)
    with pytest.raises(ProbeUnavailable, match=words) as refused:
        SimulatedProbe(tmp_path, NODE).open()
    assert "\n" not in str(refused.value)


def test_the_same_instant_looks_the_same_after_a_restart(tmp_path) -> None:
    write(tmp_path, actors=[actor()])
    now = time.time()
    a, b = (opened(tmp_path).read(now) for _ in range(2))
    assert a.gpus == b.gpus
    assert NodeSample.from_message(a.to_message(), node=NODE) == a


def test_a_claim_puts_a_real_process_on_its_gpus(tmp_path) -> None:
    write(tmp_path, gpus=3)
    probe = opened(tmp_path)
    write_claim(
        tmp_path,
        NODE,
        pid=os.getpid(),
        gpu=["GPU-0", "GPU-2"],
        memory_bytes=20 * GIB,
        util_pct=90.0,
        user="bob",
        command="recipe: tiny",
        job=12,
    )
    first, second, third = probe.read(time.time()).gpus
    for reading in (first, third):
        (process,) = reading.processes
        assert (process.pid, process.user, process.job) == (os.getpid(), "bob", 12)
        assert (process.memory_bytes, process.command) == (20 * GIB, "recipe: tiny")
        assert process.uid == os.getuid()
        assert reading.memory_used_bytes >= 20 * GIB
        assert reading.util_pct > 0
    assert second.processes == ()
    drop_claim(tmp_path, NODE, pid=os.getpid())
    assert probe.read(time.time()).gpus[0].processes == ()
    drop_claim(tmp_path, NODE, pid=os.getpid())


def test_a_claim_dies_with_its_process(tmp_path) -> None:
    write(tmp_path)
    process = subprocess.Popen(["sleep", "60"])
    path = write_claim(
        tmp_path, NODE, pid=process.pid, gpu="GPU-0", memory_bytes=GIB, util_pct=5.0
    )
    probe = opened(tmp_path)
    assert len(probe.read(time.time()).gpus[0].processes) == 1
    process.kill()
    process.wait()
    assert probe.read(time.time()).gpus[0].processes == ()
    assert not path.exists()


def test_a_claim_never_passes_to_a_process_that_got_the_same_pid(tmp_path) -> None:
    write(tmp_path)
    folder = claims_dir(tmp_path, NODE)
    folder.mkdir()
    path = folder / f"{os.getpid()}.json"
    path.write_text(
        json.dumps(
            {
                "pid": os.getpid(),
                "start_ticks": read_stat(os.getpid()).start_ticks - 1,
                "gpu": "GPU-0",
                "memory_bytes": GIB,
                "util_pct": 5,
            }
        )
    )
    assert opened(tmp_path).read(time.time()).gpus[0].processes == ()
    assert not path.exists()


def test_a_claim_file_with_a_single_gpu_is_read_and_a_broken_one_removed(
    tmp_path,
) -> None:
    write(tmp_path)
    folder = claims_dir(tmp_path, NODE)
    folder.mkdir()
    (folder / "1.json").write_text("{")
    (folder / f"{os.getpid()}.json").write_text(
        json.dumps(
            {
                "pid": os.getpid(),
                "start_ticks": read_stat(os.getpid()).start_ticks,
                "gpu": "GPU-1",
                "memory_bytes": GIB,
                "util_pct": 5,
                "user": "carol",
                "command": "x",
                "job": None,
            }
        )
    )
    (process,) = opened(tmp_path).read(time.time()).gpus[1].processes
    assert process.user == "carol"
    assert not (folder / "1.json").exists()


def test_memory_beyond_what_is_there_is_refused_as_cuda_would(tmp_path) -> None:
    write(tmp_path, actors=[actor(memory_bytes=50 * GIB)])
    with pytest.raises(SimulatedOutOfMemory) as refused:
        write_claim(
            tmp_path,
            NODE,
            pid=os.getpid(),
            gpu="GPU-0",
            memory_bytes=40 * GIB,
            util_pct=9.0,
        )
    assert "out of memory" in str(refused.value)
    assert refused.value.total_bytes == 80 * GIB
    assert 29 * GIB < refused.value.free_bytes < 30 * GIB
    assert not list(claims_dir(tmp_path, NODE).glob("*.json"))


def test_a_process_may_change_its_own_claim(tmp_path) -> None:
    write(tmp_path)
    for size in (70, 75, 10):
        write_claim(
            tmp_path,
            NODE,
            pid=os.getpid(),
            gpu="GPU-0",
            memory_bytes=size * GIB,
            util_pct=5.0,
        )
    gpu_0 = opened(tmp_path).read(time.time()).gpus[0]
    assert gpu_0.processes[0].memory_bytes == 10 * GIB


def test_a_gpu_or_a_process_that_does_not_exist_is_refused(tmp_path) -> None:
    write(tmp_path)
    gone = subprocess.Popen(["true"])
    gone.wait()
    with pytest.raises(ClaimRefused, match="not a simulated Gpu"):
        write_claim(
            tmp_path, NODE, pid=os.getpid(), gpu="GPU-9", memory_bytes=1, util_pct=1.0
        )
    with pytest.raises(ClaimRefused, match="no process"):
        write_claim(
            tmp_path, NODE, pid=gone.pid, gpu="GPU-0", memory_bytes=1, util_pct=1.0
        )


def _race(folder: str, start: object, results: object) -> None:
    start.wait()
    try:
        write_claim(
            Path(folder),
            NODE,
            pid=os.getpid(),
            gpu="GPU-0",
            memory_bytes=30 * GIB,
            util_pct=1.0,
        )
        results.put(1)
    except SimulatedOutOfMemory:
        results.put(0)
    start.wait()  # stay alive until all have tried: a claim dies with its process


def test_two_processes_cannot_both_take_the_last_byte(tmp_path) -> None:
    write(tmp_path)
    context = multiprocessing.get_context("fork")
    barrier, results = context.Barrier(5), context.Queue()
    racers = [
        context.Process(target=_race, args=(str(tmp_path), barrier, results))
        for _ in range(4)
    ]
    for racer in racers:
        racer.start()
    barrier.wait(60)
    won = sum(results.get(timeout=60) for _ in racers)
    barrier.wait(60)
    for racer in racers:
        racer.join(60)
    assert won == 2
