"""NVML's values besides load and memory: fans, codecs, links, Xids, topology."""

import os
import time
from itertools import chain

import pytest

from telemetry.protocol.hardware import LinkKind
from telemetry.protocol.sample import MOST_XIDS, GpuAnswer

pytestmark = pytest.mark.pure

MIB = 2**20
GIB = 2**30


def reading(probe, index: int = 0):
    return probe.read().gpus[index]


def test_fans_codecs_memory_heat_and_the_link_in_use_are_told(make_probe) -> None:
    probe = make_probe(2, model="a100", enc_util="31", dec_util="12", mem_temp="78")
    probe.sim.set("gpu 0", pcie_gen="3", pcie_width="8", remapped_corrected="2")
    probe.sim.set("gpu 1", model="rtx3090", fan="62", mem_temp="na")
    probe.open()
    server, desktop = probe.read().gpus
    assert (server.encoder_pct, server.decoder_pct) == (31, 12)
    assert (server.memory_temperature_celsius, server.fan_pct) == (78, None)
    assert (server.pcie_gen, server.pcie_width) == (3, 8)
    assert (server.row_remap_corrected, server.row_remap_uncorrected) == (2, 0)
    assert server.energy_joules is not None
    assert (desktop.fan_pct, desktop.memory_temperature_celsius) == (62, None)
    assert desktop.retired_pages is None


def test_the_roster_tells_limits_thresholds_and_the_best_it_can(make_probe) -> None:
    probe = make_probe(1, model="a100", shutdown_temp="92", slowdown_temp="89")
    probe.sim.set("gpu 0", pcie_max_gen="4", pcie_max_width="16")
    (gpu,) = probe.open().gpus
    assert (gpu.slowdown_celsius, gpu.shutdown_celsius) == (89.0, 92.0)
    assert gpu.power_limit_min_watts < 400.0 == gpu.power_limit_max_watts
    assert (gpu.memory_clock_max_mhz, gpu.sm_clock_max_mhz) == (1593, 1410)
    assert (gpu.pcie_gen_max, gpu.pcie_width_max) == (4, 16)


def test_pages_that_a_card_before_ampere_retired_are_counted(make_probe) -> None:
    probe = make_probe(1, model="v100")
    probe.sim.set("gpu 0", retired_sbe="3", retired_dbe="1", retired_pending="yes")
    probe.open()
    gpu = reading(probe)
    assert (gpu.retired_pages, gpu.retired_pages_pending) == (4, True)
    assert (gpu.row_remap_corrected, gpu.remap_pending) == (None, None)


@pytest.mark.parametrize(
    ("key", "value", "field"),
    [
        ("fan", "4294967295", "fan_pct"),
        ("mem_temp", "0", "memory_temperature_celsius"),
        ("mem_temp", "3000", "memory_temperature_celsius"),
        ("pcie_gen", "255", "pcie_gen"),
        ("pcie_width", "0", "pcie_width"),
    ],
)
def test_garbage_of_the_rarer_readings_is_refused_too(
    make_probe, key, value, field
) -> None:
    probe = make_probe(1, model="rtx3090" if key == "fan" else "a100")
    probe.sim.set("gpu 0", **{key: value})
    probe.open()
    gpu = reading(probe)
    assert (gpu.state, getattr(gpu, field)) == (GpuAnswer.OK, None)


def test_energy_is_asked_by_the_older_call_where_the_field_is_unknown(
    make_probe,
) -> None:
    probe = make_probe(1, model="a100")
    probe.sim.set("gpu 0", fail__fields="NOT_SUPPORTED")
    probe.open()
    gpu = reading(probe)
    assert gpu.energy_joules is not None
    assert gpu.memory_temperature_celsius is None


# --- links ----------------------------------------------------------------------


def test_link_rates_are_read_only_while_somebody_watches(
    make_sim, make_probe, tmp_path
) -> None:
    sim = make_sim(2, model="a100", pcie_tx="500MiB", pcie_rx="2GiB")
    sim.set("gpu 0", nvlink_tx="7GiB", nvlink_rx="3GiB")
    trace = tmp_path / "trace"
    probe = make_probe(sim=sim, env={"NVML_SIM_TRACE": str(trace)})
    first = probe.open().gpus[0].uuid
    assert reading(probe).pcie_tx_bytes_per_second is None
    assert "PcieThroughput" not in trace.read_text()
    probe.ask(f"watch {first}")
    watched, other = probe.read().gpus
    assert watched.pcie_tx_bytes_per_second == 500 * MIB
    assert watched.pcie_rx_bytes_per_second == 2 * GIB
    assert watched.nvlink_tx_bytes_per_second is None, "one look is no rate"
    assert other.pcie_tx_bytes_per_second is None
    deadline = time.monotonic() + 60
    rates = (0.0, 0.0)
    # A busy machine may stop it between a counter and its time.
    while rates != pytest.approx((7 * GIB, 3 * GIB), rel=0.35):
        assert time.monotonic() < deadline, rates
        time.sleep(1.0)
        gpu = reading(probe)
        assert gpu.nvlink_tx_bytes_per_second and gpu.nvlink_rx_bytes_per_second
        rates = (gpu.nvlink_tx_bytes_per_second, gpu.nvlink_rx_bytes_per_second)
    asked = trace.read_text().count("PcieThroughput")
    probe.ask("watch")
    assert reading(probe).pcie_rx_bytes_per_second is None
    assert trace.read_text().count("PcieThroughput") == asked
    probe.ask(f"watch {first}")
    assert reading(probe).nvlink_tx_bytes_per_second is None, "no rate over a gap"


def test_a_card_without_nvlink_has_a_pcie_rate_all_the_same(make_probe) -> None:
    probe = make_probe(1, model="t4", pcie_tx="1GiB", pcie_rx="na")
    probe.ask(f"watch {probe.open().gpus[0].uuid}")
    probe.read()
    gpu = reading(probe)
    assert gpu.pcie_tx_bytes_per_second == GIB
    assert gpu.pcie_rx_bytes_per_second is None
    assert gpu.nvlink_tx_bytes_per_second is None


def test_every_pair_has_its_distance_and_nvlink_goes_before_pcie(make_probe) -> None:
    probe = make_probe(3, model="t4")
    probe.sim.set("gpu 2", numa="1")
    info = probe.open()
    a, b, c = (gpu.uuid for gpu in info.gpus)
    assert {(x.a, x.b): x.kind for x in info.links} == {
        (a, b): LinkKind.NODE,
        (a, c): LinkKind.SYS,
        (b, c): LinkKind.SYS,
    }
    assert info.fast_links == ()
    wired = make_probe(2, model="a100").open()
    assert [x.kind for x in wired.links] == [LinkKind.NVLINK]


# --- MIG ------------------------------------------------------------------------


def test_a_split_card_lists_its_instances_with_their_memory(make_probe) -> None:
    probe = make_probe(1, model="h100")
    probe.sim.set("gpu 0", mig="on")
    probe.sim.add("gpu 0", "mig_device", "1g.10gb used:2GiB")
    probe.sim.add("gpu 0", "mig_device", "2g.20gb used:3GiB")
    parts = probe.open().gpus[1:]
    probe.read()
    card, *instances = probe.read().gpus
    told = [(x.uuid, x.memory_used_bytes) for x in card.mig_instances]
    assert told == [(parts[0].uuid, 2 * GIB), (parts[1].uuid, 3 * GIB)]
    assert "1g.10gb" in card.mig_instances[0].name
    assert card.mig_instances[1].memory_total_bytes > 19 * GIB
    assert not any(x.mig_instances for x in instances)


# --- Xid events -----------------------------------------------------------------


def xids(probe, within_seconds: float = 60.0) -> dict[str, list[int]]:
    """Codes that came until now, by UUID. It waits so long for the first."""
    found: dict[str, list[int]] = {}
    ends_at = time.monotonic() + within_seconds
    while time.monotonic() < ends_at and not found:
        probe.read()
        time.sleep(0.05)
        for uuid, codes in probe.ask("xids").items():
            found.setdefault(uuid, []).extend(codes)
    return found


def test_an_xid_is_told_once_of_the_gpu_that_had_it(make_probe) -> None:
    probe = make_probe(2, model="a100")
    uuids = [gpu.uuid for gpu in probe.open().gpus]
    assert xids(probe, within_seconds=1.0) == {}
    probe.sim.add("gpu 1", "xid", "31")
    assert xids(probe) == {uuids[1]: [31]}
    assert xids(probe, within_seconds=1.0) == {}


def test_the_xid_of_a_gpu_that_fell_off_the_bus_is_told_of_it(make_probe) -> None:
    probe = make_probe(2, model="a100")
    uuids = [gpu.uuid for gpu in probe.open().gpus]
    probe.sim.add("gpu 0", "xid", "79")
    probe.change("gpu 0", lost="yes")
    assert xids(probe) == {uuids[0]: [79]}
    assert reading(probe).state is GpuAnswer.LOST


def test_xids_are_told_after_a_driver_reload_too(make_probe) -> None:
    probe = make_probe(1, model="a100")
    (uuid,) = (gpu.uuid for gpu in probe.open().gpus)
    probe.change("", driver_generation="1", stale_error="UNINITIALIZED")
    probe.read()
    probe.ask("mend")
    assert reading(probe).answers
    probe.sim.add("gpu 0", "xid", "63")
    assert xids(probe) == {uuid: [63]}


def test_a_storm_of_xids_is_told_in_bounded_parts(make_probe) -> None:
    probe = make_probe(1, model="a100")
    probe.open()
    for code in range(1, 31):
        probe.sim.add("gpu 0", "xid", str(code))
    time.sleep(0.4)
    parts = []
    while sum(map(len, parts)) < 30:
        parts += xids(probe).values()
    assert max(map(len, parts)) <= MOST_XIDS < 30
    assert sorted(chain.from_iterable(parts)) == list(range(1, 31))


def test_a_driver_without_events_is_read_all_the_same(make_probe) -> None:
    probe = make_probe(1)
    probe.sim.set("", fail__nvmlEventSetCreate="NOT_SUPPORTED")
    probe.open()
    assert reading(probe).answers
    assert probe.ask("xids") == {}


# --- hot-plug and replacement
# ----------------------------------------------------------


def test_a_gpu_that_is_plugged_in_is_found_without_a_restart(
    make_sim, make_probe, tmp_path
) -> None:
    """NVML's own count is frozen at its start: the kernel's folder tells."""
    sim = make_sim(2, model="a100")
    (tmp_path / "0000:07:00.0").mkdir()
    probe = make_probe(sim=sim, env={"TEST_BOUND_DIR": str(tmp_path)})
    known = [gpu.uuid for gpu in probe.open().gpus]
    probe.read()
    assert probe.ask("stale") is False
    (tmp_path / "0000:0f:00.0").mkdir()
    probe.change("", gpus="3")
    probe.ask("later 11")
    probe.read()
    assert probe.ask("stale") is True
    probe.ask("mend")
    sample = probe.read()
    assert [gpu.uuid for gpu in sample.gpus][:2] == known
    assert [gpu.state for gpu in sample.gpus] == [GpuAnswer.OK] * 3


def test_a_replaced_card_is_another_gpu_and_the_old_one_is_lost(make_probe) -> None:
    probe = make_probe(2, model="a100")
    old, neighbour = (gpu.uuid for gpu in probe.open().gpus)
    probe.sim.set("gpu 0", uuid="GPU-new", serial="42")
    probe.change("", driver_generation="1", stale_error="UNINITIALIZED")
    probe.read()
    probe.ask("mend")
    states = {gpu.uuid: gpu.state for gpu in probe.read().gpus}
    assert states == {
        "GPU-new": GpuAnswer.OK,
        neighbour: GpuAnswer.OK,
        old: GpuAnswer.LOST,
    }


# --- faults of pynvml that other tools do not handle
# -----------------------------------


def test_the_process_list_that_raises_typeerror_is_never_asked_for(
    make_sim, make_probe, tmp_path
) -> None:
    sim = make_sim(1, model="a100")
    sim.add("gpu 0", "proc", "pid:1 mem:na sm:5")
    trace = tmp_path / "trace"
    probe = make_probe(sim=sim, env={"NVML_SIM_TRACE": str(trace)})
    probe.open()
    (process,) = reading(probe).processes
    assert process.memory_bytes is None
    assert "RunningProcessDetailList" not in trace.read_text()


def test_a_start_of_nvml_that_fails_three_times_succeeds_at_the_fourth(
    make_probe,
) -> None:
    probe = make_probe(1)
    probe.sim.set("", fail__init="UNKNOWN count:3")
    answers = [probe.ask("open") for _ in range(4)]
    assert [x[0] for x in answers[:3]] == ["probe-unavailable"] * 3
    assert answers[3]["kind"] == "roster"


def test_a_process_that_became_a_zombie_runs_nothing_any_more(make_probe) -> None:
    """What it still holds is memory that no process uses."""
    child = os.fork()
    if child == 0:
        os._exit(0)
    try:
        probe = make_probe(1)
        probe.sim.add("gpu 0", "proc", f"pid:{child} mem:1GiB")
        probe.open()
        assert reading(probe).processes == ()
    finally:
        os.waitpid(child, 0)


def test_old_handles_are_given_up_even_where_the_driver_takes_them(make_probe) -> None:
    """After a reload the indices may have moved: only the UUID is the identity."""
    probe = make_probe(3, model="a100")
    probe.sim.set("", strict_handles="no")
    uuids = [gpu.uuid for gpu in probe.open().gpus]
    probe.sim.set("gpu 0", present="no")
    probe.sim.set("gpu 1", util="11")
    probe.sim.set("gpu 2", util="22")
    probe.change("", driver_generation="1", stale_error="UNINITIALIZED")
    probe.read()
    probe.ask("mend")
    found = {gpu.uuid: gpu.util_pct for gpu in probe.read().gpus}
    assert found == {uuids[0]: None, uuids[1]: 11, uuids[2]: 22}
