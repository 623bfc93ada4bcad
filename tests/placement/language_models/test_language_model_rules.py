"""The plan of a served language model, its callers' requests, and their tokens."""

import json
import os
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from placement.agent.serving.language_model_host import (
    GpusUnknown,
    ServerMissing,
    chosen_server,
    served_folder,
    server_command,
    vllm_gpus,
)
from placement.language_models.call_examples import curl_example, python_example
from placement.language_models.rules import (
    CHAT,
    COMPLETION,
    LIMITS,
    AnswerTokens,
    best_plan,
    checked_body,
    component_bytes,
    serving_workload,
    why_no_plan,
)
from placement.language_models.token_rate_limit import add_tokens, check_tokens
from placement.planner.launch.language_model_servers import (
    TRANSFORMERS,
    VLLM,
    ServedText,
)
from placement.planner.launch.recipes import SERVE_TEXT, checked_settings
from placement.planner.model.well_known import well_known_spec
from placement.planner.search.planner import plan
from placement.planner.values.errors import LaunchInvalid
from placement.planner.values.gpu_availability import GpuOffer
from placement.protocol.call_refusal import CallRefused
from telemetry.protocol.gpu_cards import card_of

GIB = 2**30


def gpus(*sizes_gib):
    return [
        GpuOffer(
            uuid=f"GPU-{n}",
            node="n",
            index=n,
            name="NVIDIA A100-SXM4-40GB",
            gpu_class="a100",
            memory_total_bytes=size * GIB,
            used_bytes=0,
            free_bytes=size * GIB,
            link_group="x",
        )
        for n, size in enumerate(sizes_gib)
    ]


def planned(model, offers, context=4096, sequences=8):
    workload = serving_workload(context, sequences, "bf16")
    return plan(well_known_spec(model), workload, offers, limits=LIMITS)


def test_old_cards_serve_in_fp16_unless_a_precision_is_chosen():
    old = [card_of("Tesla T4")]
    assert serving_workload(4096, 8, "", old).precision == "fp16"
    assert serving_workload(4096, 8, "", [*old, card_of("NVIDIA L4")]).precision == (
        "bf16"
    )
    chosen = serving_workload(4096, 8, "bf16", old)
    assert (chosen.precision, chosen.attention) == ("bf16", "efficient")


def test_the_fewest_gpus_that_hold_weights_and_cache_are_taken():
    found = best_plan(planned("llama-3-8b", gpus(40, 40)))
    assert (found.strategy, len(found.shards)) == ("single", 1)
    # 8 sequences of 4,096 tokens, 32 layers, 8 key/value heads of 128, 2 bytes.
    assert component_bytes(found, "kv_cache") == 8 * 4096 * 2 * 32 * 8 * 128 * 2
    both = best_plan(planned("llama-3-8b", gpus(20, 20)))
    assert (both.strategy, len(both.shards)) == ("tensor", 2)
    nothing = planned("llama-3-70b", gpus(40))
    assert best_plan(nothing) is None
    assert any("168.4 GiB are needed" in why for why in why_no_plan(nothing))


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"", "bad-request"),
        (b"[1]", "bad-request"),
        (b"[" * 100_000, "bad-request"),
        (b"\xff{}", "bad-request"),
        (b'{"model": "gpt-4", "messages": []}', "no-model"),
        (b'{"model": ["m"], "messages": []}', "no-model"),
        (b'{"prompt": "a"}', "bad-request"),
    ],
)
def test_a_request_that_the_server_must_not_get_is_refused(data, code):
    with pytest.raises(CallRefused) as refused:
        checked_body(data, name="m", path=CHAT)
    assert refused.value.code == code


def chat(**more):
    messages = [{"role": "user", "content": [{"type": "text", "text": "a"}]}]
    return json.dumps({"model": "m", "messages": messages} | more).encode()


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": "http://169.254.169.254/"}},
        {"type": "video_url", "video_url": {"url": "file:///etc/passwd"}},
        {"type": "audio_url", "audio_url": {"url": "http://a"}},
        {"type": "input_audio", "input_audio": {"data": ""}},
        {"image_url": "http://a"},
        {"type": "text", "text": "a", "image_url": "http://a"},
        {"type": "text", "text": {"image_url": "http://a"}},
        {"type": ["text"], "text": "a"},
        "a",
        None,
    ],
)
def test_a_message_has_only_text(part):
    text = {"type": "text", "text": "a"}
    for content in ([part], [text, part], {"0": part}):
        messages = [{"role": "user", "content": content}]
        with pytest.raises(CallRefused) as refused:
            checked_body(chat(messages=messages), name="m", path=CHAT)
        assert list(refused.value.fields) == ["messages"]
    assert "may have only text" in str(refused.value)
    spoken = [{"role": "assistant", "content": None, "tool_calls": []}]
    checked_body(chat(messages=spoken), name="m", path=CHAT)


@pytest.mark.parametrize(
    "messages", ({"content": "a"}, "text", [[{"type": "text", "text": "a"}]], ["a"], 1)
)
def test_messages_are_a_list_of_objects(messages):
    with pytest.raises(CallRefused) as refused:
        checked_body(chat(messages=messages), name="m", path=CHAT)
    assert list(refused.value.fields) == ["messages"]


def test_stream_is_a_boolean():
    for stream in (1, 0, "true", [], 1.0):
        with pytest.raises(CallRefused) as refused:
            checked_body(chat(stream=stream), name="m", path=CHAT)
        assert str(refused.value) == "The field “stream” must be true or false."
    for stream in (True, False, None):
        checked_body(chat(stream=stream), name="m", path=CHAT)


def test_a_request_without_a_model_gets_the_one_that_is_served():
    body = checked_body(b'{"prompt": "a"}', name="m", path=COMPLETION)
    assert body == {"prompt": "a", "model": "m"}


def test_tokens_are_those_that_the_server_reports():
    whole = AnswerTokens(40)
    whole.feed(b'{"usage": {"total')
    whole.feed(b'_tokens": 7}}')
    assert whole.total == 7
    parts = AnswerTokens(40, is_stream=True)
    parts.feed(b'data: {"choices": [{}]}\n\ndata: {"choi')
    parts.feed(b'ces": [{}]}\n\n')
    assert parts.total == 10 + 2, "40 bytes are 10 tokens, and there are two events"
    parts.feed(b'data: {"choices": [], "usage": {"total_tokens": 9}}\n\ndata: [DONE]\n')
    assert parts.total == 9


@pytest.mark.parametrize(
    "answer",
    [
        b'{"usage": {"total_tokens": -5}}',
        b'{"usage": {"total_tokens": true}}',
        b'{"usage": 3}',
        b"[" * 10_000,
        b"\xff",
    ],
)
def test_a_server_cannot_report_what_is_no_number_of_tokens(answer):
    counted = AnswerTokens(40)
    counted.feed(answer)
    assert counted.total == 10
    events = AnswerTokens(40, is_stream=True)
    events.feed(b"data: " + answer + b"\n" + b"y" * (AnswerTokens.MOST_KEPT_BYTES + 1))
    assert events.total in (10, 11) and not events._kept


def test_a_server_cannot_report_more_tokens_than_bytes():
    answer = b'{"usage": {"total_tokens": 2147483647}}'
    counted = AnswerTokens(40)
    counted.feed(answer)
    assert counted.total == 10 + len(answer)


def test_a_long_line_in_small_parts_is_copied_once_and_dropped_to_its_end():
    counted = AnswerTokens(40, is_stream=True)
    kept = counted._kept
    for _ in range(AnswerTokens.MOST_KEPT_BYTES // 4):
        counted.feed(b"xxxx")
    assert counted._kept is kept and len(kept) == AnswerTokens.MOST_KEPT_BYTES
    counted.feed(b"y")
    counted.feed(b'data: {"choices": [1]}')
    assert not kept
    counted.feed(b'\ndata: {"choices": [1]}\n')
    assert counted.total == 10 + 1


def settings_of(**given):
    return checked_settings(SERVE_TEXT.name, {"context_tokens": 64, **given})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("of_job", "../../etc"),
        ("of_job", "7"),
        ("name", "../a"),
        ("name", ""),
        ("model", "a b"),
        ("server", "bash"),
        ("precision", "int8"),
    ],
)
def test_a_setting_that_is_no_name_is_refused(field, value):
    with pytest.raises(LaunchInvalid) as refused:
        settings_of(**{field: value})
    assert list(refused.value.fields) == [f"recipe_settings.{field}"]


def model_in(folder: Path, **config):
    folder.mkdir(parents=True)
    given = {"model_type": "llama", "max_position_embeddings": 64, **config}
    (folder / "config.json").write_text(json.dumps(given))
    (folder / "model.safetensors").touch()
    (folder / "tokenizer.json").touch()
    return folder


def test_the_model_is_found_in_a_folder_and_in_the_results_of_a_job(tmp_path):
    own = tmp_path / "jobs" / "9-1-bb" / "work" / "results"
    environ = {"GPUPORTAL_RESULTS": str(own), "HOME": str(tmp_path)}
    folder = model_in(tmp_path / "m")
    assert served_folder(settings_of(model=str(folder)), environ) == folder
    with pytest.raises(LaunchInvalid, match="at most 64 tokens, not 65"):
        served_folder(settings_of(model=str(folder), context_tokens=65), environ)
    trained = settings_of(of_job="7-1-aa")
    with pytest.raises(LaunchInvalid, match="results of job 7 are not on this node"):
        served_folder(trained, environ)
    results = tmp_path / "jobs" / "7-1-aa" / "work" / "results"
    model = model_in(results / "model", quantization_config={})
    assert served_folder(trained, environ) == model
    (model / "config.json").rename(model / "adapter_config.json")
    with pytest.raises(LaunchInvalid, match="lora_output=merged"):
        served_folder(trained, environ)
    with pytest.raises(LaunchInvalid, match="hf download Qwen/Qwen3-8B"):
        served_folder(settings_of(model="Qwen/Qwen3-8B"), environ)


def test_the_environment_decides_on_the_server(tmp_path):
    programs = tmp_path / "venv" / "bin"
    programs.mkdir(parents=True)
    pip = f"{programs}/python -m pip install"
    with pytest.raises(ServerMissing, match=f"{pip} vllm$"):
        chosen_server("auto", str(programs), on_gpus=True)
    with pytest.raises(ServerMissing) as missing:
        chosen_server("auto", str(programs), on_gpus=False)
    assert str(missing.value).endswith(f"{pip} 'transformers[serving]'")
    (programs / "transformers").symlink_to(sys.executable)
    (programs / "python").symlink_to(sys.executable)
    assert chosen_server("auto", str(programs), on_gpus=True) is TRANSFORMERS
    (programs / "vllm").symlink_to(sys.executable)
    assert chosen_server("auto", str(programs), on_gpus=True) is VLLM
    assert chosen_server("auto", str(programs), on_gpus=False) is TRANSFORMERS
    text = ServedText("m", "/m", 128, 4, "bf16", 2)
    words = server_command(VLLM, text, "/t/s", str(programs))
    assert words[0] == f"{programs}/vllm" and "--uds=/t/s" in words
    assert {"--tensor-parallel-size=2", "--max-model-len=128"} < set(words)
    words = server_command(TRANSFORMERS, text, "/t/s", str(programs))
    assert words[0] == f"{programs}/python" and words[2:5] == ["/t/s", "serve", "m"]


def test_vllm_gets_the_indices_of_the_jobs_gpus(tmp_path, monkeypatch):
    smi = tmp_path / "nvidia-smi"
    smi.write_text("#!/bin/sh\n[ $# = 2 ] && echo '0, GPU-a' && echo '2, GPU-b'\n")
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    told = vllm_gpus({"CUDA_VISIBLE_DEVICES": "GPU-b,GPU-a,MIG-c"})
    assert told["CUDA_VISIBLE_DEVICES"] == "2,0,MIG-c"
    assert told["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert vllm_gpus({"CUDA_VISIBLE_DEVICES": "0,1"}) == vllm_gpus({}) == {}
    with pytest.raises(GpusUnknown, match="lists no GPU with the UUID GPU-x on this"):
        vllm_gpus({"CUDA_VISIBLE_DEVICES": "GPU-a,GPU-x"})
    smi.write_text("#!/bin/sh\nexit 9\n")
    with pytest.raises(GpusUnknown, match="exit status 9"):
        vllm_gpus({"CUDA_VISIBLE_DEVICES": "GPU-a"})
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    with pytest.raises(GpusUnknown, match="No such file"):
        vllm_gpus({"CUDA_VISIBLE_DEVICES": "GPU-a"})


def test_the_tokens_of_a_minute_are_limited(redis_client, settings):
    settings.SERVE_TOKENS_PER_MINUTE = 10
    at = datetime(2026, 11, 28, 12, 0, 21, tzinfo=UTC)
    check_tokens(7, at)
    add_tokens(7, 9, at)
    check_tokens(7, at)
    add_tokens(7, 2, at)
    with pytest.raises(CallRefused) as refused:
        check_tokens(7, at)
    assert (refused.value.code, refused.value.retry_seconds) == ("too-many-tokens", 39)
    assert str(refused.value) == (
        "You have used 11 tokens of language models in this minute. The limit is 10 "
        "per person. Try again in 39 s."
    )
    check_tokens(8, at)
    check_tokens(7, at + timedelta(seconds=39))


def test_the_examples_name_address_and_model():
    base = "https://gpu.lab/serve/7/v1"
    assert curl_example(base, "m").endswith(f"{base}/chat/completions")
    compile(python_example(base, "m"), "example", "exec")
