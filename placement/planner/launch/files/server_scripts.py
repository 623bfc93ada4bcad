"""Scripts that serve the model of an inference Plan by vLLM or by SGLang.

Options: docs.vllm.ai "CLI Reference: serve"; SGLang 0.5.23 "Server Arguments". A test
checks each of them against the lists of the parsers' options in
tests/data/launch/server_options.json.
"""

from collections.abc import Sequence
from shlex import quote

from placement.planner.launch.files.adaptation_files import COMPUTE, weights_of
from placement.planner.launch.files.launch_file_error import (
    NoSuchLaunch,
    head_comment,
)
from placement.planner.launch.files.torchrun import visible
from placement.planner.launch.language_model_servers import MEMORY_RATIO
from placement.planner.model.spec import ModelSpec
from placement.planner.values.plan import Plan
from placement.planner.values.strategies import strategy_of
from telemetry.protocol.sentences import sentence

CENTS = 100
"""A server's part of the memory is written in hundredths."""


def vllm_script(plan: Plan, spec: ModelSpec) -> str:
    """Return a shell script that starts vLLM as a Plan says. Its first argument is the
    folder of the model.

    Raises:
        NoSuchLaunch: vLLM cannot run it.
    """
    _check(plan, spec)
    launch = plan.launch
    words = [
        "vllm",
        "serve",
        f"--dtype={COMPUTE[launch['precision']]}",
        f"--max-model-len={launch['sequence_length']}",
        f"--max-num-seqs={_sequences(plan)}",
        f"--gpu-memory-utilization={_memory_ratio(plan)}",
        f"--tensor-parallel-size={launch['tensor_degree']}",
        f"--pipeline-parallel-size={launch['pipeline_degree']}",
        f"--data-parallel-size={launch['data_degree']}",
    ]
    if launch.get("prefill_tokens"):
        most = max(launch["prefill_tokens"], _sequences(plan))
        words.append(f"--max-num-batched-tokens={most}")
    if weights_of(plan, spec) == "nf4":
        words.append("--quantization=bitsandbytes")
    if launch["offload_parameters"]:
        words.append(f"--cpu-offload-gb={_offloaded_gib(plan)}")
    return _script(plan, words, layers_variable="VLLM_PP_LAYER_PARTITION")


def sglang_script(plan: Plan, spec: ModelSpec) -> str:
    """Return a shell script that starts SGLang as a Plan says. Its first argument is
    the folder of the model.

    Raises:
        NoSuchLaunch: SGLang cannot run it.
    """
    _check(plan, spec)
    launch = plan.launch
    words = [
        "python",
        "-m",
        "sglang.launch_server",
        f"--dtype={COMPUTE[launch['precision']]}",
        f"--context-length={launch['sequence_length']}",
        f"--max-running-requests={_sequences(plan)}",
        f"--mem-fraction-static={_memory_ratio(plan)}",
        f"--tp-size={launch['tensor_degree']}",
        f"--pp-size={launch['pipeline_degree']}",
        f"--dp-size={launch['data_degree']}",
    ]
    if launch.get("prefill_tokens"):
        words.append(f"--chunked-prefill-size={launch['prefill_tokens']}")
    if weights_of(plan, spec) == "nf4":
        words += ["--quantization=bitsandbytes", "--load-format=bitsandbytes"]
    if launch["offload_parameters"]:
        words.append(f"--cpu-offload-gb={_offloaded_gib(plan)}")
    words.append("--model-path")
    return _script(plan, words, layers_variable="SGLANG_PP_LAYER_PARTITION")


def _check(plan: Plan, spec: ModelSpec) -> None:
    """Raise NoSuchLaunch unless both servers can run a Plan."""
    launch = plan.launch
    if spec.head != "causal_lm":
        raise NoSuchLaunch(sentence("It serves causal language models."))
    if "server" not in strategy_of(plan.strategy).launchers:
        raise NoSuchLaunch(
            sentence("It cannot run the strategy {title}.", title=plan.title)
        )
    if plan.spans_nodes:
        raise NoSuchLaunch(
            sentence("On several nodes it needs a cluster that a script cannot start.")
        )
    if weights_of(plan, spec) == "int8":
        raise NoSuchLaunch(
            sentence("It quantizes to 4 bits while it loads, not to 8: plan with nf4.")
        )
    if launch["offload"] == "nvme":
        raise NoSuchLaunch(sentence("It cannot keep weights on a drive."))


def _sequences(plan: Plan) -> int:
    """Return the requests that one copy of the model computes together."""
    return plan.workload.microbatch(plan.launch["data_degree"])


def _memory_ratio(plan: Plan) -> float:
    """Return the part of each Gpu's memory that a server may take.

    It is at most MEMORY_RATIO, and not more than is free on the fullest Gpu.
    """
    free = min(shard.free_bytes / shard.total_bytes for shard in plan.shards)
    return int(CENTS * min(MEMORY_RATIO, free)) / CENTS


def _offloaded_gib(plan: Plan) -> int:
    """Return the whole GiB of weights that each Gpu of a Plan keeps in the host's
    memory.
    """
    return -(-plan.host_memory_bytes // (len(plan.shards) * 2**30))


def _stage_blocks(plan: Plan) -> list[int]:
    """Return the blocks of each stage. The table and the head, which are the first and
    the last layer of a Plan, are none.
    """
    stages = {one.stage: (one.first_layer, one.last_layer) for one in plan.shards}
    return [
        last - first - (first == 0) - (last == plan.layer_count)
        for _, (first, last) in sorted(stages.items())
    ]


def _script(plan: Plan, words: Sequence[str], *, layers_variable: str) -> str:
    blocks = _stage_blocks(plan)
    lines = [
        "#!/bin/sh",
        head_comment(plan),
        "# Its first argument is the folder of the model. Other options may follow.",
        "set -eu",
        *visible(plan.shards),
    ]
    if len(set(blocks)) > 1:
        lines.append(f"export {layers_variable}={','.join(map(str, blocks))}")
    # The folder follows the last option of SGLang, and "serve" of vLLM.
    place = len(words) if words[-1].startswith("--model") else 2
    told = [quote(word) for word in words]
    told.insert(place, '"$folder"')
    lines += ["folder=${1:?name the folder of the model}", "shift"]
    return "\n".join([*lines, f'exec {" ".join(told)} "$@"']) + "\n"
