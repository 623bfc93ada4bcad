"""The real pynvml over the simulated driver: every trap of it, sprung once."""

import json
import os
import subprocess
import sys
import time

import pytest

from telemetry.protocol.hardware import NodeInfo
from telemetry.protocol.sample import GpuAnswer, Throttle
from tests.telemetry.agent.children import BASE_DIR

pytestmark = pytest.mark.pure

GIB = 2**30
GARBAGE = {
    "util": "255",
    "temp": "4294967295",
    "power": "4294967",
    "clock_sm": "4294967295",
    "mem_used": "500GiB",
}


def test_a_roster_says_what_there_is(make_probe) -> None:
    info = make_probe(2, model="a100").open()
    first = info.gpus[0]
    assert (first.name, first.gpu_class) == ("NVIDIA A100-SXM4-80GB", "A100-SXM4-80GB")
    assert first.memory_total_bytes == 80 * GIB
    assert (first.power_limit_watts, first.sm_clock_max_mhz) == (400.0, 1410)
    assert first.slowdown_celsius and first.pci_bus_id and first.serial
    assert (first.compute_capability, first.mig) == ("8.0", False)
    assert [gpu.device_numbers for gpu in info.gpus] == [((195, 0),), ((195, 1),)]
    assert info.fast_links == ((first.uuid, info.gpus[1].uuid),)
    assert (info.driver_version, info.cuda_version) == ("570.124.06", "12.8")
    assert info.boot_id


def test_cards_without_nvlink_have_no_fast_links(make_probe) -> None:
    assert make_probe(2, model="t4").open().fast_links == ()


def test_a_sample_says_what_the_gpu_does_and_who_does_it(make_probe) -> None:
    probe = make_probe(2, model="a100", util="93", temp="71", power="350")
    probe.sim.add("gpu 0", "proc", f"pid:{os.getpid()} mem:10GiB sm:70")
    probe.open()
    busy, idle = probe.read().gpus
    assert (busy.state, busy.util_pct, busy.temperature_celsius) == (
        GpuAnswer.OK,
        93,
        71,
    )
    assert (busy.power_watts, busy.power_limit_watts) == (350.0, 400.0)
    assert busy.memory_total_bytes == 80 * GIB
    assert busy.throttle is not None
    assert busy.energy_joules is not None
    assert (busy.ecc_uncorrected, busy.remap_failure) == (0, False)
    (process,) = busy.processes
    assert (process.pid, process.memory_bytes) == (os.getpid(), 10 * GIB)
    assert (process.sm_pct, process.uid) == (70, os.getuid())
    assert process.user and "pytest" in process.command
    assert 0 < time.time() - process.started_at < 3600
    assert idle.processes == ()


def test_the_drivers_reserve_does_not_count_as_used(make_probe) -> None:
    probe = make_probe(1, model="a100")
    probe.sim.add("gpu 0", "proc", "pid:1 mem:13GiB")
    probe.open()
    gpu = probe.read().gpus[0]
    assert gpu.memory_used_bytes == 13 * GIB + 4 * 2**20
    assert gpu.memory_reserved_bytes > 2**28


def test_no_driver_is_one_clear_line_and_not_a_traceback(make_sim) -> None:
    sim = make_sim(1)
    env = {**sim.env(), "LD_LIBRARY_PATH": ""}
    command = [sys.executable, "-m", "telemetry.agent.sampler", "--node", "n", "--once"]
    done = subprocess.run(
        [*command, "--backend", "nvml"],
        env=env,
        cwd=BASE_DIR,
        capture_output=True,
        text=True,
    )
    if done.returncode == 0:
        pytest.skip("this machine has a real NVIDIA driver")
    assert done.returncode == 3
    assert done.stderr == "sampler: nvml: no NVIDIA driver (libnvidia-ml.so.1) here\n"


@pytest.mark.parametrize(
    ("driver", "words"),
    [
        ("unloaded", "not loaded"),
        ("mismatch", "restart the node"),
        ("unknown", "does not answer"),
    ],
)
def test_a_driver_that_does_not_start_says_why(make_probe, driver, words) -> None:
    probe = make_probe(1)
    probe.sim.set("", driver=driver)
    code, text = probe.ask("open")
    assert code == "probe-unavailable"
    assert words in text
    assert "\n" not in text


def test_a_driver_without_gpus_is_unavailable(make_probe) -> None:
    assert make_probe(0).ask("open")[1] == "nvml: there is a driver but no GPU"


def test_a_name_that_is_not_utf8_is_shown_and_kills_nothing(make_probe) -> None:
    probe = make_probe(2)
    probe.sim.set("gpu 0", name=r"NVIDIA caf\xE9", uuid=r"GPU-\xE9", serial=r"\xFF")
    info = probe.open()
    assert info.gpus[0].name == "NVIDIA caf\\xe9"
    assert info.gpus[0].uuid == "GPU-\\xe9"
    assert [gpu.state for gpu in probe.read().gpus] == [GpuAnswer.OK, GpuAnswer.OK]


def test_a_name_that_is_too_long_has_a_stand_in(make_probe) -> None:
    probe = make_probe(1)
    probe.sim.set("gpu 0", name="X" * 120)
    assert probe.open().gpus[0].name == "unnamed"


def test_an_old_driver_is_read_through_its_older_calls(make_probe) -> None:
    probe = make_probe(2, old=True, util="40")
    probe.sim.add("gpu 0", "proc", f"pid:{os.getpid()} mem:5GiB")
    probe.sim.add("gpu 1", "proc", "pid:1 mem:na")
    probe.open()
    first, second = probe.read().gpus
    assert (first.state, first.util_pct) == (GpuAnswer.OK, 40)
    assert first.throttle is not None
    assert first.memory_used_bytes > 5 * GIB
    assert first.memory_reserved_bytes is None
    assert [(p.pid, p.memory_bytes) for p in first.processes] == [
        (os.getpid(), 5 * GIB)
    ]
    assert [(p.pid, p.memory_bytes) for p in second.processes] == [(1, None)]


def test_memory_that_a_process_does_not_tell_is_unknown(make_probe) -> None:
    probe = make_probe(1)
    probe.sim.add("gpu 0", "proc", "pid:1 mem:na sm:5")
    probe.open()
    (process,) = probe.read().gpus[0].processes
    assert process.memory_bytes is None


def test_a_process_that_ran_nothing_has_zero_and_not_unknown(make_probe) -> None:
    probe = make_probe(1)
    probe.sim.add("gpu 0", "proc", "pid:1 mem:1GiB sm:0")
    probe.sim.set("gpu 0", fail__procutil="NOT_FOUND")
    probe.open()
    assert probe.read().gpus[0].processes[0].sm_pct == 0


def test_utilization_of_processes_that_cannot_be_told_is_unknown(make_probe) -> None:
    probe = make_probe(1)
    probe.sim.add("gpu 0", "proc", "pid:1 mem:1GiB sm:50")
    probe.sim.set("gpu 0", fail__procutil="NOT_SUPPORTED")
    probe.open()
    assert probe.read().gpus[0].processes[0].sm_pct is None


def test_garbage_is_refused_and_not_shown(make_probe) -> None:
    probe = make_probe(2, model="a100")
    probe.sim.set("gpu 0", **GARBAGE)
    probe.open()
    bad, good = probe.read().gpus
    assert bad.state is GpuAnswer.OK
    assert (bad.util_pct, bad.temperature_celsius, bad.sm_clock_mhz) == (None,) * 3
    assert (bad.power_watts, bad.memory_used_bytes) == (None, None)
    assert bad.memory_total_bytes == 80 * GIB
    assert good.util_pct is not None


def test_a_process_with_more_memory_than_there_is_has_unknown_memory(
    make_probe,
) -> None:
    probe = make_probe(1, model="t4")
    probe.sim.add("gpu 0", "proc", "pid:1 mem:900GiB")
    probe.open()
    assert probe.read().gpus[0].processes[0].memory_bytes is None


@pytest.mark.parametrize("call", ["util", "mem", "temp", "power", "clocks", "throttle"])
def test_one_call_that_fails_costs_its_own_field_only(make_probe, call) -> None:
    probe = make_probe(1)
    probe.sim.set("gpu 0", **{f"fail__{call}": "UNKNOWN"})
    probe.open()
    gpu = probe.read().gpus[0]
    told = {
        "util": gpu.util_pct,
        "mem": gpu.memory_used_bytes,
        "temp": gpu.temperature_celsius,
        "power": gpu.power_watts,
        "clocks": gpu.sm_clock_mhz,
        "throttle": gpu.throttle,
    }
    assert gpu.state is GpuAnswer.OK
    assert [name for name, value in told.items() if value is None] == [call]


def test_processes_that_cannot_be_listed_are_unknown_and_not_nobody(make_probe) -> None:
    probe = make_probe(1)
    probe.sim.set("gpu 0", fail__procs="UNKNOWN")
    probe.open()
    assert probe.read().gpus[0].processes is None


def test_a_list_that_always_grows_is_unknown_and_not_an_error(make_probe) -> None:
    probe = make_probe(2)
    probe.sim.add("gpu 0", "proc", "pid:1 mem:1GiB")
    probe.sim.set("gpu 0", process_race="yes")
    probe.open()
    racing, quiet = probe.read().gpus
    assert (racing.state, racing.processes) == (GpuAnswer.OK, None)
    assert quiet.processes == ()


def test_a_process_that_is_gone_is_listed_without_an_owner(make_probe) -> None:
    probe = make_probe(1)
    probe.sim.add("gpu 0", "proc", "pid:gone mem:2GiB")
    probe.open()
    (process,) = probe.read().gpus[0].processes
    assert (process.uid, process.user, process.started_at) == (None, None, None)
    assert process.memory_bytes == 2 * GIB


def test_a_lost_gpu_stays_in_the_list_and_the_others_go_on(make_probe) -> None:
    probe = make_probe(3)
    uuids = [gpu.uuid for gpu in probe.open().gpus]
    probe.change("gpu 1", lost="yes")
    sample = probe.read()
    assert [gpu.uuid for gpu in sample.gpus] == uuids
    assert [gpu.state for gpu in sample.gpus] == [
        GpuAnswer.OK,
        GpuAnswer.LOST,
        GpuAnswer.OK,
    ]
    assert sample.gpus[1].util_pct is None
    probe.sim.unset("gpu 1", "lost")
    probe.change("gpu 0", util="7")
    assert [gpu.state for gpu in probe.read().gpus] == [GpuAnswer.OK] * 3


def test_one_gpu_with_nothing_but_errors_is_told_as_such(make_probe) -> None:
    probe = make_probe(2)
    probe.open()
    probe.change("gpu 0", fail__all="UNKNOWN")
    assert [gpu.state for gpu in probe.read().gpus] == [GpuAnswer.ERROR, GpuAnswer.OK]
    probe.read()
    assert probe.ask("stale") is False


@pytest.mark.parametrize("stale_error", ["UNKNOWN", "UNINITIALIZED"])
def test_after_a_driver_reload_the_gpus_are_found_again_by_uuid(
    make_probe, stale_error
) -> None:
    probe = make_probe(3)
    probe.sim.set("", stale_error=stale_error)
    uuids = [gpu.uuid for gpu in probe.open().gpus]
    assert all(gpu.answers for gpu in probe.read().gpus)
    # The middle card is gone after the reload: the indices behind it shift.
    probe.sim.set("gpu 1", present="no")
    probe.sim.set("gpu 2", util="77")
    probe.change("", driver_generation="1")
    assert {gpu.state for gpu in probe.read().gpus} == {GpuAnswer.ERROR}
    probe.read()
    assert probe.ask("stale") is True
    assert probe.ask("mend") is None
    found = {gpu.uuid: gpu for gpu in probe.read().gpus}
    assert set(found) == set(uuids)
    assert found[uuids[0]].state is GpuAnswer.OK
    assert found[uuids[1]].state is GpuAnswer.LOST
    assert found[uuids[2]].util_pct == 77
    info = NodeInfo.from_message(json.dumps(probe.ask("info")))
    assert [gpu.uuid for gpu in info.gpus if gpu.lost] == [uuids[1]]


def test_while_the_driver_is_away_it_is_tried_again_with_growing_pauses(
    make_probe,
) -> None:
    probe = make_probe(1)
    probe.open()
    probe.change("", driver="unloaded", driver_generation="1")
    for _ in range(2):
        assert probe.read().gpus[0].state is GpuAnswer.ERROR
    answers = []
    for _ in range(25):
        answers.append(probe.ask("mend"))
        probe.ask("later 0.1")
    tries = [x for x in answers if x is not None]
    assert 2 <= len(tries) <= 3
    assert all("not loaded" in text for _, text in tries)
    assert probe.read().gpus[0].state is GpuAnswer.ERROR
    probe.change("", driver="ok", driver_generation="2")
    deadline = time.monotonic() + 60
    while not probe.read().gpus[0].answers:
        assert time.monotonic() < deadline
        probe.ask("mend")
        time.sleep(0.1)


def test_a_gpu_that_was_lost_before_the_start_is_not_invented(make_probe) -> None:
    probe = make_probe(3)
    probe.sim.set("gpu 0", lost="yes")
    assert len(probe.open().gpus) == 2
    assert all(gpu.answers for gpu in probe.read().gpus)


def test_a_node_whose_gpus_are_all_lost_says_so(make_probe) -> None:
    assert make_probe(2, lost="yes").ask("open")[1] == "nvml: all 2 GPUs are lost"


def test_a_split_card_cannot_say_and_its_instances_are_listed(make_probe) -> None:
    probe = make_probe(1, model="h100")
    probe.sim.set("gpu 0", mig="on")
    probe.sim.add("gpu 0", "mig_device", "1g.10gb used:2GiB")
    probe.sim.add("gpu 0", "mig_device", "2g.20gb used:3GiB")
    info = probe.open()
    parent, *parts = info.gpus
    assert parent.mig
    assert [part.mig_parent for part in parts] == [parent.uuid] * 2
    assert not any(part.mig for part in parts)
    asked = [part.uuid for part in parts] + [parent.uuid, "MIG-gone"]
    done = subprocess.run(
        [sys.executable, "-m", "telemetry.agent.probe.mig_places", *asked],
        cwd=BASE_DIR,
        env=probe.sim.env(),
        capture_output=True,
        check=True,
        timeout=60,
    )
    places = json.loads(done.stdout)
    assert set(places) == {part.uuid for part in parts}, "and where each is"
    assert [place[0] for place in places.values()] == [0, 0]
    assert len({tuple(place) for place in places.values()}) == 2
    card, first, second = probe.read().gpus
    assert (card.state, card.util_pct, card.processes) == (GpuAnswer.OK, None, None)
    assert (first.util_pct, first.memory_used_bytes) == (None, 2 * GIB)
    assert second.memory_used_bytes == 3 * GIB


def test_throttling_and_memory_errors_are_told_in_words(make_probe) -> None:
    probe = make_probe(1, model="h100")
    probe.sim.set(
        "gpu 0",
        throttle="sw_thermal, hw_power_brake",
        ecc_uncorrected="3",
        remap_pending="yes",
    )
    probe.open()
    gpu = probe.read().gpus[0]
    assert gpu.throttle == (Throttle.SW_THERMAL, Throttle.HW_POWER_BRAKE)
    assert (gpu.ecc_uncorrected, gpu.remap_pending) == (3, True)
    assert gpu.remap_failure is False


def test_a_desktop_card_without_error_correction_cannot_say(make_probe) -> None:
    probe = make_probe(1, model="rtx3090")
    probe.open()
    gpu = probe.read().gpus[0]
    assert gpu.state is GpuAnswer.OK
    assert (gpu.ecc_corrected, gpu.remap_pending) == (None, None)


def test_everything_about_eight_gpus_takes_at_most_160_calls(
    make_sim, make_probe, tmp_path
) -> None:
    sim = make_sim(8, model="a100")
    for index in range(8):
        for pid in (os.getpid(), 1):
            sim.add(f"gpu {index}", "proc", f"pid:{pid} mem:4GiB sm:30")
    trace = tmp_path / "trace"
    probe = make_probe(sim=sim, env={"NVML_SIM_TRACE": str(trace)})
    probe.open()
    probe.read()  # the first one also reads what is slow
    before = len(trace.read_text().splitlines())
    for _ in range(10):  # ten seconds: what is slow is asked once of each
        probe.ask("later 1")
        sample = probe.read()
    time.sleep(0.1)  # the look for Xid events is on a thread of its own
    calls = len(trace.read_text().splitlines()) - before
    assert 1000 < calls <= 10 * 160
    assert all(len(gpu.processes) == 2 for gpu in sample.gpus)
    assert all(gpu.row_remap_corrected == 0 for gpu in sample.gpus)
