"""The board updates without a reload, announces changes, and reconnects."""

import json
import random
import re
import time
from datetime import timedelta

import pytest
from django.contrib.sessions.models import Session
from django.utils import timezone
from playwright.sync_api import Page, WebSocketRoute, expect

from reservations.operations.pools import act_on_gpus
from telemetry.live import broadcast
from telemetry.protocol.frame import LAYOUT, Frame, FrameRow, decode, encode
from telemetry.protocol.gpu_state import WORDS, GpuState
from tests.factories import make_reservation, make_user
from tests.gpuportal.browser.conftest import GIB, LiveCluster
from tests.pages import eventually
from tests.telemetry.messages import process


@pytest.fixture
def board(
    page: Page, live_asgi: str, live_cluster: LiveCluster, alice, sign_in
) -> Page:
    """Alice looks at the board, and it is live."""
    sign_in(alice)
    page.goto(live_asgi)
    expect(page.locator("#live")).to_have_text(re.compile(r"^live, \d\.\d s$"))
    return page


def card(page: Page, live_cluster: LiveCluster, index: int):
    return page.locator(f"#gpu-{live_cluster.gpus[index].pk}")


def test_a_live_board_follows_its_gpus(
    board: Page, live_cluster: LiveCluster, subtests: pytest.Subtests
):
    """One page tells every story, because a page costs more than what happens on it."""
    with subtests.test("changes of state are announced and samples are not"):
        changes_of_state_are_announced_and_samples_are_not(board, live_cluster)
    with subtests.test("figures move without a reload"):
        figures_move_without_a_reload(board, live_cluster)
    with subtests.test("what the card cannot say is a dash and not a zero"):
        what_the_card_cannot_say_is_a_dash_and_not_a_zero(board, live_cluster)
    with subtests.test("counters and cards have one word for each state"):
        counters_and_cards_have_one_word_for_each_state(board, live_cluster)
    with subtests.test("every state has its word and its icon"):
        every_state_has_its_word_and_its_icon(board, live_cluster)
    with subtests.test("a stale GPU says when it was last seen"):
        a_stale_gpu_says_when_it_was_last_seen(board, live_cluster)
    with subtests.test("late data is said when frames stop"):
        late_data_is_said_when_frames_stop(board, live_cluster)


def changes_of_state_are_announced_and_samples_are_not(
    board: Page, live_cluster: LiveCluster
) -> None:
    announcer = board.locator("#announcer")
    live_cluster.set(0, util_pct=55)
    expect(card(board, live_cluster, 0).locator(".gpu-util")).to_have_text("55")
    expect(announcer).to_have_text("")
    live_cluster.set(0, state=GpuState.INTRUDER)
    expect(announcer).to_have_text("node-a:0: someone else’s process.")


def figures_move_without_a_reload(board: Page, live_cluster: LiveCluster) -> None:
    live_cluster.set(
        0,
        state=GpuState.BUSY,
        util_pct=73,
        memory_used_mib=61 * 1024,
        temperature_celsius=64,
        power_watts=287,
        sm_clock_mhz=1410,
    )
    shown = card(board, live_cluster, 0)
    expect(shown.locator(".gpu-util")).to_have_text("73")
    expect(shown.locator(".mem-used")).to_have_text("61 / 80 GiB")
    expect(shown).to_contain_text("64 °C")
    expect(shown).to_contain_text("287/300 W")
    expect(shown).to_contain_text("1.41 GHz")
    expect(shown.locator(".state")).to_have_text("busy")


def what_the_card_cannot_say_is_a_dash_and_not_a_zero(
    board: Page, live_cluster: LiveCluster
) -> None:
    live_cluster.set(1, util_pct=None, temperature_celsius=None, power_watts=None)
    shown = card(board, live_cluster, 1)
    expect(shown.locator(".gpu-util")).to_have_text("–")
    expect(shown.locator(".fig-value").nth(0)).to_have_text("–")


SHOWN = {
    GpuState.IDLE: "booked but idle",
    GpuState.INTRUDER: "someone else’s process",
    GpuState.SQUATTER: "in use without a booking",
    GpuState.STALE: "no data",
    GpuState.MAINTENANCE: "out of service",
    GpuState.FOREIGN: "another system",
}
"""Words of the board that differ from the API's."""


def counters_and_cards_have_one_word_for_each_state(
    board: Page, live_cluster: LiveCluster
) -> None:
    live_cluster.beat_seconds = 0.1
    for state in (GpuState.IDLE, GpuState.SQUATTER, GpuState.LOST, GpuState.THROTTLED):
        live_cluster.set(2, state=state)
        word = SHOWN.get(state, WORDS[state])
        expect(card(board, live_cluster, 2).locator(".state")).to_have_text(word)
        expect(board.get_by_role("button", name=f"1 {word}")).to_be_visible()


def every_state_has_its_word_and_its_icon(
    board: Page, live_cluster: LiveCluster
) -> None:
    live_cluster.beat_seconds = 0.1
    chip = card(board, live_cluster, 2).locator(".state")
    for state in GpuState:
        live_cluster.set(2, state=state)
        expect(chip).to_have_text(SHOWN.get(state, WORDS[state]))
        key = WORDS[state].lower()
        expect(chip.locator("use")).to_have_attribute("href", re.compile(f"#{key}$"))
    live_cluster.set(2, state=GpuState.FREE)
    live_cluster.beat_seconds = LiveCluster.beat_seconds


def a_stale_gpu_says_when_it_was_last_seen(
    board: Page, live_cluster: LiveCluster
) -> None:
    live_cluster.set(0, state=GpuState.STALE, age_seconds=12.0)
    expect(card(board, live_cluster, 0)).to_contain_text(
        re.compile(r"last seen 1\d s ago")
    )
    expect(board.get_by_role("button", name="1 no data")).to_be_visible()


def late_data_is_said_when_frames_stop(board: Page, live_cluster: LiveCluster) -> None:
    live_cluster.stop()
    expect(board.locator("#live")).to_have_text(re.compile(r"^late, \d+ s$"))
    expect(board.locator("#live-banner")).to_contain_text(
        "Live data is late: the newest reading is"
    )
    live_cluster.start()
    expect(board.locator("#live")).to_have_text(re.compile(r"^live"))
    expect(board.locator("#live-banner")).to_be_hidden()


def test_a_new_holder_appears_by_itself(
    board: Page, live_cluster: LiveCluster, alice, bob, redis_client
):
    now = timezone.now()
    end = now + timedelta(hours=2)
    make_reservation(alice, live_cluster.gpus[:1], now, end, state="active")
    make_reservation(bob, live_cluster.gpus[1:2], now, end, state="active")
    redis_client.publish(broadcast.CALENDAR_CHANGED, "{}")
    expect(card(board, live_cluster, 0)).to_contain_text("You, Vision")
    expect(card(board, live_cluster, 0)).to_have_class(re.compile("is-mine"))
    expect(card(board, live_cluster, 1)).to_contain_text(
        re.compile(r"Bobuntil|Bob, Vision")
    )
    board.get_by_role("button", name="Mine").click()
    expect(board.locator(".gpu")).to_have_count(1)


def test_a_held_gpu_is_booked_from_when_it_comes_free(
    board: Page, live_cluster: LiveCluster, bob, redis_client
):
    now = timezone.now()
    end = (now + timedelta(hours=3)).replace(minute=0, second=0, microsecond=0)
    make_reservation(bob, live_cluster.gpus[:1], now, end, state="active")
    redis_client.publish(broadcast.CALENDAR_CHANGED, "{}")
    wall = timezone.localtime(end)
    link = card(board, live_cluster, 0).get_by_role(
        "link", name=re.compile("^Book from")
    )
    # The day too, where it is another one: in the last three hours of a day.
    expect(link).to_have_text(re.compile(rf"^Book from ({wall:%a} )?{wall:%H:%M}\s*$"))
    expect(
        card(board, live_cluster, 1).get_by_role("link", name="Book node")
    ).to_have_text("Book")
    link.click()
    expect(board.locator("#start")).to_have_value(f"{wall:%Y-%m-%dT%H:%M}")
    expect(board.locator("#gpu-count")).to_have_text("1 GPU")


def test_processes_and_their_owners_split_the_memory_bar(
    board, live_cluster, redis_client
):
    gpu = live_cluster.gpus[0]
    live_cluster.set(0, memory_used_mib=60 * 1024)
    processes = [
        process(
            pid=11, user="<b>eve</b>", command="<img src=x>", memory_bytes=40 * GIB
        ),
        process(pid=12, user="zoe", command="python a.py", memory_bytes=19 * GIB),
        process(pid=13, user="zoe", command="python b.py", memory_bytes=GIB // 2),
    ]
    told = {
        "processes": processes,
        "throttle": ["sw_power_cap"],
        "memory_reserved_bytes": 2 * GIB,
    }
    detail = {
        "node": "node-a",
        "at": time.time(),
        "load1": 0.4,
        "gpus": {gpu.uuid: told},
    }
    with redis_client.pipeline() as pipe:
        broadcast.publish_detail(pipe, "node-a", json.dumps(detail).encode())
        pipe.execute()
    shown = card(board, live_cluster, 0)
    expect(shown.locator(".gpu-procs")).to_contain_text("<b>eve</b>")
    expect(shown.locator(".gpu-procs")).to_contain_text("and 1 more")
    expect(shown.locator(".mem-owners")).to_have_text("<b>eve</b> 40 · zoe 19.5")
    # Two owners, a process without an owner, the driver's reserve.
    expect(shown.locator(".mem-bar > i")).to_have_count(4)
    widths = shown.locator(".mem-bar > i").evaluate_all(
        "(parts) => parts.map((p) => Number(p.style.getPropertyValue('--part')))"
    )
    assert widths == pytest.approx([40 / 80, 19.5 / 80, 0.5 / 80, 2 / 80], abs=1e-3)
    live_cluster.set(0, state=GpuState.BUSY)
    expect(shown).to_contain_text("throttled: power limit")
    expect(board.get_by_text("load 0.4")).to_be_visible()


def test_a_sparkline_starts_with_the_minute_before(
    page, live_asgi, live_cluster, alice, sign_in
):
    now = time.time()
    live_cluster.set(0, util_pct=40)
    for ago in range(50, 0, -1):
        live_cluster.send_frame(now - ago)
    sign_in(alice)
    page.goto(live_asgi)
    line = card(page, live_cluster, 0).locator(".spark-line")
    expect(line).to_have_attribute("d", re.compile(r"(\d+ 60L){40,}"))


# --- filters and views ------------------------------------------------------------


def test_a_board_is_filtered_sorted_and_hung_on_a_wall(
    board: Page, live_cluster: LiveCluster, subtests: pytest.Subtests
):
    """One page tells every story."""
    with subtests.test("class and text filter together"):
        class_and_text_filter_together(board)
    with subtests.test("the filter is kept in the address"):
        the_filter_is_kept_in_the_address(board, live_cluster)
    with subtests.test("the table sorts by a click on its head"):
        the_table_sorts_by_a_click_on_its_head(board, live_cluster)
    with subtests.test("the wall shows every GPU large and without scrolling"):
        the_wall_shows_every_gpu_large_and_without_scrolling(board, live_cluster)


def class_and_text_filter_together(board: Page) -> None:
    board.get_by_label("Class", exact=True).select_option("RTX 3090 24GB")
    expect(board.locator(".gpu")).to_have_count(2)
    board.get_by_label("Filter GPUs").fill("node-b:1")
    expect(board.locator(".gpu")).to_have_count(1)
    board.get_by_label("Filter GPUs").fill("nobody")
    expect(board.get_by_text("No GPU matches the filter")).to_be_visible()
    board.get_by_role("button", name="Clear the filter").click()
    expect(board.locator(".gpu")).to_have_count(6)


def the_filter_is_kept_in_the_address(board: Page, live_cluster: LiveCluster) -> None:
    live_cluster.set(3, state=GpuState.IDLE)
    board.get_by_role("button", name="1 booked but idle").click()
    expect(board.locator(".gpu")).to_have_count(1)
    assert "state=idle" in board.url
    board.reload()
    expect(board.locator(".gpu .state")).to_have_text(["booked but idle"])
    board.get_by_role("button", name="Clear").first.click()
    expect(board.locator(".gpu")).to_have_count(6)
    assert "state" not in board.url


def the_table_sorts_by_a_click_on_its_head(
    board: Page, live_cluster: LiveCluster
) -> None:
    for i in range(6):
        live_cluster.set(i, util_pct=10 * i)
    board.get_by_role("button", name="Table").click()
    board.get_by_role("button", name="Utilization").click()
    board.get_by_role("button", name="Utilization").click()
    expect(board).to_have_url(re.compile("sort=-util"))
    head = board.get_by_role("columnheader", name="Utilization")
    expect(head).to_have_attribute("aria-sort", "descending")
    board.mouse.move(0, 0)
    board.locator("h1").focus()
    names = board.locator("tbody th")
    expect(names.first).to_have_text("node-b:1")
    expect(names.last).to_have_text("node-a:0")


def the_wall_shows_every_gpu_large_and_without_scrolling(
    board: Page, live_cluster: LiveCluster
) -> None:
    board.set_viewport_size({"width": 1920, "height": 1080})
    board.get_by_role("button", name="Wall").click()
    expect(board.locator(".tile")).to_have_count(6)
    lowest = (
        "(tiles) => Math.max(...tiles.map((t) => t.getBoundingClientRect().bottom))"
    )
    eventually(board, lambda: board.locator(".tile").evaluate_all(lowest) <= 1080)
    size = "(word) => parseFloat(getComputedStyle(word).fontSize)"
    word = board.locator(".tile-state").first
    eventually(board, lambda: word.evaluate(size) >= 44)
    board.keyboard.press("Escape")
    expect(board.locator(".gpu")).to_have_count(6)


# --- the connection ---------------------------------------------------------------


def test_the_page_says_that_it_is_cut_off_and_comes_back(
    page: Page, live_asgi: str, live_cluster: LiveCluster, alice, sign_in, console
):
    seen: list[WebSocketRoute] = []
    served: list[WebSocketRoute] = []
    portal = {"is up": True}

    def route(socket: WebSocketRoute) -> None:
        seen.append(socket)
        if portal["is up"]:
            served.append(socket)
            socket.connect_to_server()
        else:
            socket.close(code=1011)

    page.route_web_socket(re.compile("/ws/board/"), route)
    sign_in(alice)
    page.goto(live_asgi)
    expect(page.locator("#live")).to_have_text(re.compile("^live"))
    portal["is up"] = False
    served[0].close(code=1012)
    expect(page.locator("#live-banner")).to_contain_text("Live connection lost")
    expect(page.locator("#live")).to_contain_text("offline")
    eventually(page, lambda: len(seen) >= 4)
    portal["is up"] = True
    expect(page.locator("#live")).to_have_text(re.compile("^live"))
    expect(page.locator("#live-banner")).to_be_hidden()
    assert len(served) == 2
    # When other web processes have taken over, nobody notices.
    page.evaluate(
        """() => {
          const banner = document.getElementById("live-banner");
          window.shown = 0;
          const look = () => { window.shown += banner.hidden ? 0 : 1; };
          new MutationObserver(look).observe(banner, { attributes: true });
        }"""
    )
    served[1].close(code=1012)
    eventually(page, lambda: len(served) == 3)
    expect(page.locator("#live")).to_have_text(re.compile("^live"))
    assert page.evaluate("window.shown") == 0


def test_try_now_does_not_wait(page, live_asgi, live_cluster, alice, sign_in):
    tries: list[WebSocketRoute] = []

    def route(socket: WebSocketRoute) -> None:
        tries.append(socket)
        if len(tries) <= 4:
            socket.close(code=1011)
        else:
            socket.connect_to_server()

    page.route_web_socket(re.compile("/ws/board/"), route)
    sign_in(alice)
    page.goto(live_asgi)
    expect(page.locator("#live-words")).to_contain_text(re.compile("in [3-9] s"))
    made = page.evaluate(
        """() => {
          let made = 0;
          const construct = (...all) => {
            made += 1;
            return Reflect.construct(...all);
          };
          window.WebSocket = new Proxy(window.WebSocket, { construct });
          const named = (one) => one.textContent.trim() === "Try now";
          [...document.querySelectorAll("button")].find(named).click();
          return made;
        }"""
    )
    assert made == 1
    expect(page.locator("#live")).to_have_text(re.compile("^live"))


def test_who_is_signed_out_is_led_to_the_login_page(
    page, live_asgi, live_cluster, alice, sign_in
):
    opened: list[WebSocketRoute] = []

    def route(socket: WebSocketRoute) -> None:
        opened.append(socket)
        socket.connect_to_server()

    page.route_web_socket(re.compile("/ws/board/"), route)
    sign_in(alice)
    page.goto(f"{live_asgi}/?view=table")
    expect(page.locator("#live")).to_have_text(re.compile("^live"))
    Session.objects.all().delete()
    opened[0].close(code=4401)
    page.wait_for_url("**/login/?next=%2F%3Fview%3Dtable&ended=1")


def test_waits_double_stay_random_and_have_an_end(page, live_asgi, alice, sign_in):
    sign_in(alice)
    page.goto(f"{live_asgi}/me/")
    waits = page.evaluate(
        """async () => {
          const { backoffSeconds } = await import("/static/js/live.js");
          const ends = (n) => [0, 1].map((luck) => backoffSeconds(n, () => luck));
          return [0, 1, 2, 3, 9].map(ends);
        }"""
    )
    assert waits == [[0.25, 0.5], [0.5, 1], [1, 2], [2, 4], [10, 20]]


def test_the_browser_reads_frames_as_python_does(page, live_asgi, alice, sign_in):
    dice = random.Random(5)

    def maybe(most: int) -> int | None:
        return dice.choice([None, 0, most, dice.randrange(most + 1)])

    rows = tuple(
        FrameRow(
            state=dice.choice(list(GpuState)),
            util_pct=maybe(100),
            memory_used_mib=maybe(2**32 - 2),
            temperature_celsius=maybe(254),
            power_watts=maybe(65534),
            sm_clock_mhz=maybe(65534),
            age_seconds=dice.choice([None, 0.0, 3.7, 25.4]),
        )
        for _ in range(200)
    )
    data = encode(Frame(4_000_000_000, 1_790_000_000.25, rows))
    sign_in(alice)
    page.goto(f"{live_asgi}/me/")
    read = page.evaluate(
        """async ([bytes, told]) => {
          const frame = await import("/static/js/telemetry/frame.js");
          const { decode, readLayout, split } = frame;
          const layout = readLayout(told);
          const twice = new Uint8Array([...bytes, ...bytes]).buffer;
          const frames = split(twice, layout);
          if (frames.length !== 2) throw new Error(`${frames.length} frames`);
          return decode(frames[1], layout);
        }""",
        [list(data), LAYOUT],
    )
    want = decode(data)
    assert (read["rosterId"], read["serverAt"]) == (want.roster_id, want.server_at)
    for got, row in zip(read["rows"], want.rows, strict=True):
        mib = got["memoryUsedBytes"]
        assert got["state"] == row.state
        assert got["utilPct"] == row.util_pct
        assert (None if mib is None else mib // 2**20) == row.memory_used_mib
        assert got["temperatureCelsius"] == row.temperature_celsius
        assert got["powerWatts"] == row.power_watts
        assert got["smClockMhz"] == row.sm_clock_mhz
        assert got["ageSeconds"] == pytest.approx(row.age_seconds)


def test_an_open_page_reads_the_frames_of_a_portal_with_another_layout(
    page, live_asgi, alice, sign_in
):
    before = encode(Frame(1, 5.0, (FrameRow(GpuState.BUSY, util_pct=93),)))
    # The next version has one more column, before the age, and so another roster.
    fan = ["fan_pct", "Uint8", 11, 100, 1]
    *others, age = LAYOUT["fields"]
    wider = {"row_bytes": 13, "fields": [*others, fan, [*age[:2], 12, *age[3:]]]}
    after = before[:2] + b"\2\0\0\0" + before[6:-1] + bytes([44]) + before[-1:]
    sign_in(alice)
    page.goto(f"{live_asgi}/me/")
    read = page.evaluate(
        """async ([before, layout, after, wider]) => {
          const { Board } = await import("/static/js/board/model.js");
          const board = new Board();
          const gpus = [{ id: 1, uuid: "GPU-1", node: "a", index: 0 }];
          const rows = [];
          const take = (bytes) => {
            board.takeFrame(new Uint8Array(bytes).buffer);
            rows.push(board.cells[0].row);
          };
          board.takeRoster({ roster_id: 1, gpus }); // ingest of an older version
          take(before);
          board.takeRoster({ roster_id: 1, layout, gpus });
          take(before);
          take(after); // its roster has not come yet
          board.takeRoster({ roster_id: 2, layout: wider, gpus });
          take(after);
          board.takePast(new Uint8Array([...after, ...after]).buffer);
          return rows.map((row) => row && [row.utilPct, row.fanPct ?? null]);
        }""",
        [list(before), LAYOUT, list(after), wider],
    )
    assert read == [None, [93, None], [93, None], [93, 44]]


@pytest.mark.parametrize("width", [1440, 390])
def test_a_card_says_why_its_gpu_takes_no_bookings(
    page, live_asgi, sign_in, live_cluster, width
):
    omar = make_user("omar", is_staff=True, is_superuser=True)
    act_on_gpus(
        act="drain",
        gpu_ids=[live_cluster.gpus[1].pk],
        actor=omar,
        now=timezone.now(),
        reason="loud fan",
    )
    live_cluster.send_roster()
    sign_in(make_user("alice"))
    page.set_viewport_size({"width": width, "height": 900})
    page.goto(live_asgi + "/")
    card = page.locator(f"#gpu-{live_cluster.gpus[1].pk}")
    expect(card).to_contain_text("no new bookings: loud fan")
    page.goto(live_asgi + "/?view=table")
    expect(page.get_by_text("no new bookings: loud fan")).to_be_visible()


def test_nothing_moves_without_end_on_cards_off_the_screen(
    page, live_asgi, sign_in, live_cluster
):
    sign_in(make_user("alice"), "dark")
    page.set_viewport_size({"width": 360, "height": 640})
    page.goto(live_asgi + "/")
    expect(page.locator(".gpu-util").first).to_be_visible()
    # Reading styles, as axe-core does, computes those of hidden cards, too.
    read = """() => {
      for (const node of document.querySelectorAll(".gpu, .gpu *")) {
        const style = getComputedStyle(node);
        void (style.borderColor + style.backgroundColor + style.width);
      }
    }"""
    left = """() => document.getAnimations()
      .filter((one) => one.effect.getComputedTiming().endTime < Infinity)
      .map((one) => one.effect.target.className)"""
    last = live_cluster.gpus[-1].pk
    for state in (GpuState.IDLE, GpuState.BUSY, GpuState.LOST):
        live_cluster.set(len(live_cluster.gpus) - 1, state=state, memory_used_mib=9000)
        look = re.compile(f"is-{state.name.lower()}")
        expect(page.locator(f"#gpu-{last}")).to_have_class(look)
        page.evaluate(read)
        eventually(page, lambda: page.evaluate(left) == [])
