"""The planning page in a real browser: it answers while one changes things."""

import json
import re
import struct
from pathlib import Path

from asgiref.sync import sync_to_async
from playwright.sync_api import Page, expect

from gpuportal.http.handler import OneHopHandler
from gpuportal.http.planners import PlannerBusy, Planners
from placement.models import StoredPlan
from reservations.models import Reservation
from tests.pages import eventually, hold


def open_plan(page: Page, address: str, sign_in, user, query: str = "") -> None:
    sign_in(user)
    page.goto(f"{address}/plan/{query}")
    expect(page.locator("#verdict")).to_contain_text("Fits on")


def write_safetensors(path: Path) -> int:
    """Write a file of 4 MiB whose header says so; return the header's length."""
    size = 2**22
    tensor = {"dtype": "F32", "shape": [1024, 1024], "data_offsets": [0, size]}
    header = json.dumps({"h.0.w": tensor}).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + bytes(size))
    return 8 + len(header)


def test_from_a_workload_to_a_booking_to_a_job(
    page: Page, live_asgi, live_cluster, sign_in, alice
):
    open_plan(page, live_asgi, sign_in, alice)
    before = page.locator(".card-head .muted strong").inner_text()
    page.get_by_label("Batch", exact=True).fill("64")
    expect(page.locator(".card-head .muted strong")).not_to_have_text(before)
    expect(page).to_have_url(re.compile("batch=64"))
    page.get_by_label("Batch", exact=True).fill("lots")
    expect(page.locator("#e-batch")).to_contain_text("whole number")
    expect(page.get_by_label("Batch", exact=True)).to_have_attribute(
        "aria-invalid", "true"
    )
    expect(page.get_by_role("alert")).to_contain_text("No plan yet")
    page.get_by_label("Batch", exact=True).fill("8")
    expect(page.locator("#e-batch")).to_be_hidden()
    expect(page.get_by_role("button", name="Book this GPU")).to_be_visible()
    # A browser that leaves while an answer is on its way reports that on the console.
    expect(page.locator("[aria-busy=true]")).to_have_count(0)
    page.get_by_role("button", name="Book this GPU").click()
    page.wait_for_url("**/calendar/**")
    expect(page.locator("#booking [name=purpose]")).to_have_value("gpt2: One GPU")
    expect(page.locator("#gpu-count")).to_have_text("1 GPU")
    page.locator("#book").click()
    page.wait_for_url("**/jobs/new/**")
    expect(page.get_by_text("With the plan")).to_be_visible()
    held = Reservation.objects.get(user=alice)
    assert held.state == "active"
    assert f"reservation={held.pk}" in page.url
    assert f"plan={StoredPlan.objects.get().pk}" in page.url


def test_a_line_runs_while_the_planner_works(
    page: Page, live_asgi, live_cluster, sign_in, alice
):
    open_plan(page, live_asgi, sign_in, alice)
    line = """document.getAnimations().some(
        (one) => one.animationName === "run" && one.playState === "running")"""
    let_go = hold(page, "**/plan/")
    page.get_by_label("Infer").check(force=True)
    busy = page.locator("#plan-layout-result[aria-busy=true] .plan-busy-words")
    expect(busy).to_have_css("opacity", "1")
    assert page.evaluate(line)
    expect(page.get_by_label("Optimizer", exact=True)).to_be_hidden()
    let_go()
    expect(page.locator("[aria-busy=true]")).to_have_count(0)
    # A line that is not visible gets no frames either.
    eventually(page, lambda: not page.evaluate(line))


def test_of_a_large_file_only_the_header_travels(
    page: Page, live_asgi, live_cluster, sign_in, alice, tmp_path
):
    path = tmp_path / "large.safetensors"
    header = write_safetensors(path)
    open_plan(page, live_asgi, sign_in, alice)
    page.get_by_text("Your file").click()
    page.evaluate(
        """() => {
          const send = window.fetch;
          window.fetch = (url, options) => {
            const size = options?.body?.get?.("upload")?.size;
            // A form without a file sends an empty one.
            if (size) (window.sentBytes ??= []).push(size);
            return send(url, options);
          };
        }"""
    )
    page.get_by_label("File", exact=True).set_input_files(path)
    expect(page.locator(".verdict")).to_contain_text("1,048,576 parameters")
    assert set(page.evaluate("() => window.sentBytes")) == {header}
    expect(page.locator(".verdict")).to_contain_text("Activations are a guess")
    expect(page.locator("#id_model")).to_contain_text("large.safetensors")
    assert page.locator("#id_model").input_value() != ""
    page.get_by_label("Batch", exact=True).fill("16")
    expect(page.locator(".verdict")).to_contain_text("1,048,576 parameters")


def test_a_bad_file_is_named_at_its_field_and_what_was_typed_stays(
    page: Page, live_asgi, live_cluster, sign_in, alice, tmp_path
):
    path = tmp_path / "config.json"
    path.write_text('{"model_type": "nosuch"}')
    open_plan(page, live_asgi, sign_in, alice, "?batch=12")
    page.get_by_text("Your file").click()
    page.get_by_label("File", exact=True).set_input_files(path)
    expect(page.locator("#e-upload")).to_contain_text("not a known family")
    expect(page.get_by_label("Batch", exact=True)).to_have_value("12")
    expect(page.locator("[aria-busy=true]")).to_have_count(0)


def test_an_estimate_that_comes_late_does_not_hide_the_error_of_a_file(
    page: Page, live_asgi, live_cluster, sign_in, alice, tmp_path
):
    path = tmp_path / "config.json"
    path.write_text('{"model_type": "nosuch"}')
    open_plan(page, live_asgi, sign_in, alice)
    expect(page.locator("[aria-busy=true]")).to_have_count(0)
    held = []
    page.route("**/plan/now/", lambda route: held.append(route))
    page.get_by_text("Your file").click()
    page.get_by_label("File", exact=True).set_input_files(path)
    expect(page.locator("#e-upload")).to_contain_text("not a known family")
    assert held
    for route in held:
        with page.expect_response("**/plan/now/"):
            route.continue_()
    expect(page.locator("[aria-busy=true]")).to_have_count(0)
    expect(page.locator("#e-upload")).to_contain_text("not a known family")


def test_a_sharded_models_files_go_together_as_headers(
    page: Page, live_asgi, live_cluster, sign_in, alice, tmp_path
):
    shards = []
    for number in (0, 1):
        path = tmp_path / f"model-0000{number + 1}-of-00002.safetensors"
        tensor = {"dtype": "F32", "shape": [1024, 512], "data_offsets": [0, 2**21]}
        header = json.dumps({f"h.{number}.w": tensor}).encode()
        path.write_bytes(struct.pack("<Q", len(header)) + header + bytes(2**21))
        shards.append(path)
    index = tmp_path / "model.safetensors.index.json"
    names = {f"h.{number}.w": shards[number].name for number in (0, 1)}
    index.write_text(json.dumps({"weight_map": names}))
    open_plan(page, live_asgi, sign_in, alice)
    page.get_by_text("Your file").click()
    page.get_by_label("File", exact=True).set_input_files([*shards, index])
    expect(page.locator(".verdict")).to_contain_text("1,048,576 parameters")
    expect(page.locator("#understood")).to_contain_text("Parameters are exact")
    sizes = page.evaluate(
        "() => [...document.getElementById('id_upload').files].map((f) => f.size)"
    )
    assert all(size < 2**20 for size in sizes)


def test_the_top_card_follows_the_file_that_was_chosen(
    page: Page, live_asgi, live_cluster, sign_in, alice, tmp_path
):
    """It never shows figures of the model before while the new one is read."""
    open_plan(page, live_asgi, sign_in, alice)
    top = page.locator("#plan-now")
    expect(top).to_contain_text("124,439,808 parameters")
    let_go = hold(page, "**/plan/")
    page.get_by_text("Your file").click()
    expect(top).not_to_contain_text("124,439,808")
    config = tmp_path / "config.json"
    config.write_text(
        json.dumps({"model_type": "gpt2", "n_layer": 2, "n_embd": 64, "n_head": 4})
    )
    page.get_by_label("File", exact=True).set_input_files(config)
    expect(top).to_contain_text("Working…")
    let_go()
    expect(top.locator("#now-likely")).to_be_visible()
    expect(top).to_contain_text("3,382,080 parameters")
    assert "124,439,808" not in page.locator("main").inner_text()
    page.get_by_label("Batch", exact=True).fill("16")
    expect(page).to_have_url(re.compile("batch=16"))
    expect(top).to_contain_text("3,382,080 parameters")


def test_a_plan_that_has_to_wait_says_so_and_comes_by_itself(
    page: Page, live_asgi, live_cluster, sign_in, alice, settings, monkeypatch, console
):
    """The planner refuses requests for a while. The page shows why, and repeats."""
    settings.PLANNER_PROCESS = True
    words = "The planner is busy with other plans. Try again in 2 seconds."
    refusals = []
    wanted = {"refuse": False}

    async def answer(_planners, request, _user_pk):
        if request.method == "POST" and request.path == "/plan/" and wanted["refuse"]:
            refusals.append(request.path)
            raise PlannerBusy(words, 2)
        handler = OneHopHandler()
        return await sync_to_async(handler.get_response_here, thread_sensitive=False)(
            request
        )

    monkeypatch.setattr(Planners, "answer", answer)
    open_plan(page, live_asgi, sign_in, alice)
    wanted["refuse"] = True
    page.get_by_label("Batch", exact=True).fill("64")
    expect(page.locator("#plan-result [role=alert]")).to_contain_text(words)
    expect(page.locator("#plan-result")).to_contain_text("Waiting for a turn")
    expect(page.locator("#announcer")).to_contain_text("The planner is busy")
    wanted["refuse"] = False
    expect(page.locator("#verdict")).to_contain_text("Fits on")
    # The browser itself notes each 429.
    eventually(page, lambda: len(console) == len(refusals) > 0)
    assert all("429" in line for line in console)
    console.clear()
