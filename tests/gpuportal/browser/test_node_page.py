"""The page of one node, the deeper figures of a Gpu, and tables of many rows."""

import json
import time

import pytest
from playwright.sync_api import Page, expect

from telemetry.live import broadcast
from telemetry.protocol.broker_keys import WATCHED
from telemetry.protocol.gpu_state import GpuState
from tests.factories import make_gpus, make_node
from tests.gpuportal.browser.conftest import GIB, LiveCluster
from tests.pages import PHONE, check_looks, eventually, fits, violations
from tests.telemetry.messages import process

SILENT = {"processes": None, "throttle": None, "memory_reserved_bytes": None}


def tell(
    live_cluster: LiveCluster, trouble: dict | None = None, **figures: object
) -> None:
    """Details of node-a: two processes on its first Gpu."""
    first, *others = live_cluster.gpus[:4]
    gpus = {gpu.uuid: SILENT for gpu in others}
    gpus[first.uuid] = {
        "processes": [process(), process(4300, user="bob")],
        "throttle": ["sw_power_cap"],
        "memory_reserved_bytes": GIB // 2,
        **figures,
    }
    detail = {"node": "node-a", "at": time.time(), "load1": 1.25, "gpus": gpus}
    if trouble:
        detail["trouble"] = trouble
    with live_cluster.client.pipeline() as pipe:
        broadcast.publish_detail(pipe, "node-a", json.dumps(detail).encode())
        pipe.execute()


@pytest.fixture
def node_page(page: Page, live_asgi: str, live_cluster: LiveCluster, alice, sign_in):
    """Alice looks at node-a, whose first two Gpus are joined."""
    node = live_cluster.gpus[0].node
    node.fast_links = [[live_cluster.gpus[0].uuid, live_cluster.gpus[1].uuid]]
    node.links = [[live_cluster.gpus[0].uuid, live_cluster.gpus[2].uuid, "sys"]]
    node.save()
    live_cluster.set(0, state=GpuState.BUSY, util_pct=88)

    def go() -> None:
        sign_in(alice)
        tell(live_cluster)
        page.goto(f"{live_asgi}/nodes/node-a/")
        expect(page.locator(".gpu-util").first).to_have_text("88")

    return go


def test_a_node_shows_its_gpus_and_is_accessible(
    page: Page, live_cluster: LiveCluster, node_page, subtests: pytest.Subtests
):
    node_page()
    with subtests.test("it is accessible and fits"):
        check_looks(page)
    with subtests.test("it shows its own GPUs, processes and links"):
        # On a busy machine axe-core may look until the details are too old.
        tell(live_cluster)
        a_node_shows_its_own_gpus_processes_and_links(page, live_cluster)


def a_node_shows_its_own_gpus_processes_and_links(
    page: Page, live_cluster: LiveCluster
) -> None:
    expect(page.locator("article.gpu")).to_have_count(4)
    rows = page.locator("#node-processes tr")
    expect(rows).to_have_count(2)
    expect(rows.nth(1)).to_contain_text("bob")
    expect(page.locator("#node-load")).to_have_text("1.3")
    links = page.get_by_role("region", name="Links between the GPUs")
    expect(links.locator("tbody tr").first).to_have_text("0·NVSYS–")
    expect(page.locator("#node-trouble")).to_be_hidden()
    tell(live_cluster, trouble={"state": "wedged", "reason": "nvmlInit, 40 s", "at": 0})
    expect(page.locator("#node-trouble")).to_contain_text("needs a restart")
    expect(page.locator("#node-trouble")).to_contain_text("nvmlInit, 40 s")


def test_a_board_leads_to_the_node(
    page: Page, live_asgi, live_cluster: LiveCluster, alice, sign_in
):
    sign_in(alice)
    page.goto(live_asgi)
    page.get_by_role("link", name="node-b", exact=True).click()
    expect(page.locator("h1")).to_have_text("node-b")
    expect(page.locator("article.gpu")).to_have_count(2)


def test_a_gpus_page_tells_all_it_says_and_asks_for_what_is_dear(
    page: Page, live_asgi, live_cluster: LiveCluster, alice, sign_in
):
    gpu = live_cluster.gpus[0]
    sign_in(alice)
    tell(
        live_cluster,
        fan_pct=42,
        energy_joules=7.2e6,
        pcie_tx_bytes_per_second=3 * 2**20,
    )
    page.goto(f"{live_asgi}/gpus/{gpu.pk}/")

    def figure(label: str):
        term = page.locator("#gpu-figures dt", has_text=label)
        return term.locator("xpath=following-sibling::dd")

    expect(figure("Fan")).to_have_text("42 %")
    expect(figure("Throttled by")).to_have_text("power limit")
    expect(figure("Energy since")).to_have_text("2.0 kWh")
    expect(figure("PCIe out")).to_have_text("3 MiB/s")
    expect(figure("Memory temperature")).to_have_text("–")
    expect(figure("Memory temperature")).to_have_attribute(
        "title", "This GPU does not report it."
    )
    eventually(page, lambda: live_cluster.client.exists(WATCHED + gpu.uuid))
    assert 0 < live_cluster.client.ttl(WATCHED + gpu.uuid) <= 10
    assert not live_cluster.client.exists(WATCHED + live_cluster.gpus[1].uuid)


def test_a_table_of_many_gpus_holds_only_the_rows_near_the_screen(
    page: Page, live_asgi, live_cluster: LiveCluster, alice, sign_in
):
    live_cluster.stop()
    for number in range(12):
        make_gpus(24, make_node(f"rack-{number:02}"))
    live_cluster.rows += live_cluster.rows[:1] * 288
    live_cluster.send_roster()
    live_cluster.send_frame()
    live_cluster.start()
    sign_in(alice)
    page.goto(f"{live_asgi}/?view=table")
    rows = page.locator(".board-table tbody tr:not(.spacer)")
    expect(page.locator(".board-table")).to_have_attribute("aria-rowcount", "295")
    expect(rows.first).to_contain_text("node-a:0")
    assert rows.count() < 80
    page.evaluate("window.scrollTo(0, document.documentElement.scrollHeight)")
    expect(rows.last).to_contain_text("rack-11:23")
    expect(rows.last).to_have_attribute("aria-rowindex", "295")
    assert rows.count() < 80


def test_the_device_gate_is_shown_beside_the_isolation(
    page: Page, live_cluster: LiveCluster, live_asgi: str, omar, sign_in
):
    node = live_cluster.gpus[0].node
    node.gate_mode, node.gate_state = "gated", "failed"
    node.gate_reason = "an ordinary user could open /dev/nvidia0"
    node.gate_report = {"refusals": [[1001, "eve", 7]], "uncovered": ["bob (sudo)"]}
    node.save()
    live_cluster.send_roster()
    sign_in(omar)
    page.set_viewport_size({"width": PHONE[0], "height": PHONE[1]})
    page.goto(f"{live_asgi}/nodes/node-a/")
    expect(page.locator(".node-head")).to_contain_text("device gate failed")
    gate = page.get_by_role("region", name="Device gate")
    expect(gate).to_contain_text("an ordinary user could open /dev/nvidia0")
    expect(gate).to_contain_text("Not covered: root, bob (sudo).")
    assert violations(page) == []
    fits(page)
