"""Scripts that serve the model of an inference Plan by vLLM or by SGLang.

Options: docs.vllm.ai "CLI Reference: serve"; SGLang 0.5.23 "Server Arguments". A test
checks each of them against the lists of the parsers' options in
tests/data/launch/server_options.json.

The two servers count memory differently. vLLM takes `--gpu-memory-utilization` of each
Gpu's whole memory, the CUDA context included (`vllm/v1/worker/gpu_worker.py`). SGLang
takes `--mem-fraction-static` of the memory that is free when it starts, on the Gpu of a
copy that has least, for weights and KV cache only (`profile_max_num_token` in
`srt/model_executor`).
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
from placement.planner.values.humanize import gib
from placement.planner.values.plan import Plan, Shard
from placement.planner.values.strategies import strategy_of
from telemetry.protocol.gpu_cards import card_of
from telemetry.protocol.sentences import sentence

CENTS = 100
"""A server's part of the memory is written in hundredths."""
VLLM_CAPABILITY = (7, 0)
SGLANG_CAPABILITY = (7, 5)
"""The least CUDA compute capability that a server runs on."""
LORA_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)
"""The values of --max-lora-rank that all releases of vLLM take."""
STATIC = ("parameters", "kv_cache")
"""Components that SGLang counts in its static memory."""
LEAST_BALANCE = 0.9
"""SGLang cuts layers only across Gpus of which each has this part of the free memory of
the emptiest one (`_check_tp_memory_balance`).
"""
INDICES = """\
# Releases of the server until 2026 read no UUIDs, so each becomes an index.
case ,$CUDA_VISIBLE_DEVICES in
*,GPU-*)
    listed=$(nvidia-smi --query-gpu=index,uuid --format=csv,noheader) || {
        echo "$0: nvidia-smi lists no GPUs" >&2
        exit 2
    }
    indices=
    for gpu in $(echo "$CUDA_VISIBLE_DEVICES" | tr , ' '); do
        case $gpu in
        GPU-*)
            named='$2 == uuid {print $1}'
            index=$(echo "$listed" | awk -F ', *' -v uuid="$gpu" "$named") ;;
        *) index=$gpu ;;
        esac
        if [ -z "$index" ]; then
            echo "$0: nvidia-smi lists no GPU with the UUID $gpu on this machine" >&2
            exit 2
        fi
        indices=${indices:+$indices,}$index
    done
    export CUDA_DEVICE_ORDER=PCI_BUS_ID CUDA_VISIBLE_DEVICES="$indices" ;;
esac"""
"""Lines of a shell script. The UUID of a MIG instance has no index and stays."""


def vllm_script(plan: Plan, spec: ModelSpec) -> str:
    """Return a shell script that starts vLLM as a Plan says. Its first argument is the
    folder of the model.

    Raises:
        NoSuchLaunch: vLLM cannot run it.
    """
    _check(plan, spec, VLLM_CAPABILITY)
    launch = plan.launch
    rank = _lora_rank(spec)
    words = [
        "vllm",
        "serve",
        f"--dtype={COMPUTE[launch['precision']]}",
        f"--max-model-len={launch['sequence_length']}",
        f"--max-num-seqs={_sequences(plan)}",
        f"--gpu-memory-utilization={_whole_ratio(plan)}",
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
    if rank:
        words += ["--enable-lora", f"--max-lora-rank={rank}"]
    return _script(
        plan, words, layers_variable="VLLM_PP_LAYER_PARTITION", adapts=bool(rank)
    )


def sglang_script(plan: Plan, spec: ModelSpec) -> str:
    """Return a shell script that starts SGLang as a Plan says. Its first argument is
    the folder of the model.

    Raises:
        NoSuchLaunch: SGLang cannot run it.
    """
    _check(plan, spec, SGLANG_CAPABILITY)
    if spec.shape is not None and spec.shape.lora_rank:
        raise NoSuchLaunch(
            sentence("It is not set up for adapters here: use vllm.sh, or merge them.")
        )
    launch = plan.launch
    words = [
        "python",
        "-m",
        "sglang.launch_server",
        f"--dtype={COMPUTE[launch['precision']]}",
        f"--context-length={launch['sequence_length']}",
        f"--max-running-requests={_sequences(plan)}",
        f"--mem-fraction-static={_static_ratio(plan)}",
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


def _check(plan: Plan, spec: ModelSpec, capability: tuple[int, int]) -> None:
    """Raise NoSuchLaunch unless a server can run a Plan.

    Args:
        capability: the least compute capability of its cards.
    """
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
    longest = spec.shape.positions if spec.shape else 0
    if longest and launch["sequence_length"] > longest:
        raise NoSuchLaunch(
            sentence(
                "It refuses {tokens} tokens: the model's configuration has {longest} "
                "positions.",
                tokens=launch["sequence_length"],
                longest=longest,
            )
        )
    _check_cards(plan, capability)


def _check_cards(plan: Plan, least: tuple[int, int]) -> None:
    """Raise NoSuchLaunch for a card that is too old. Unknown ones and AMD's pass."""
    for shard in plan.shards:
        card = card_of(shard.gpu_name)
        if card is None or card.compute_capability.startswith("gfx"):
            continue
        if tuple(map(int, card.compute_capability.split("."))) < least:
            raise NoSuchLaunch(
                sentence(
                    "It needs compute capability {least}, and {name} has {capability}.",
                    least=".".join(map(str, least)),
                    name=card.name,
                    capability=card.compute_capability,
                )
            )


def _lora_rank(spec: ModelSpec) -> int:
    """Return the --max-lora-rank for the adapters of a model; 0: it has none."""
    planned = spec.shape.lora_rank if spec.shape else 0
    if planned > LORA_RANKS[-1]:
        raise NoSuchLaunch(
            sentence(
                "It serves adapters of rank {most} at most, not {rank}.",
                most=LORA_RANKS[-1],
                rank=planned,
            )
        )
    return next(one for one in LORA_RANKS if one >= planned) if planned else 0


def _sequences(plan: Plan) -> int:
    """Return the requests that one copy of the model computes together."""
    return plan.workload.microbatch(plan.launch["data_degree"])


def _whole_ratio(plan: Plan) -> float:
    """Return the part of each Gpu's whole memory that vLLM may take.

    It is at most MEMORY_RATIO, and not more than is free on the fullest Gpu.

    Raises:
        NoSuchLaunch: the Plan needs more on a Gpu.
    """
    free = min(shard.free_bytes / shard.total_bytes for shard in plan.shards)
    ratio = int(CENTS * min(MEMORY_RATIO, free)) / CENTS
    for shard in plan.shards:
        if shard.low_bytes > ratio * shard.total_bytes:
            raise NoSuchLaunch(
                sentence(
                    "It takes the same part of every GPU's memory, here {ratio}. On "
                    "{gpu} that is {taken}, and this plan needs {need} there.",
                    ratio=ratio,
                    gpu=shard.gpu_label,
                    taken=gib(ratio * shard.total_bytes),
                    need=gib(shard.low_bytes),
                )
            )
    return ratio


def _static_ratio(plan: Plan) -> float:
    """Return the part of the memory free at its start that SGLang may take for weights
    and KV cache.

    It is at most MEMORY_RATIO, and leaves room for the temporary buffers.

    Raises:
        NoSuchLaunch: the free memory of the Gpus differs too much, or is too small.
    """
    if plan.launch["tensor_degree"] > 1:
        _check_balance(plan)
    smallest = min(map(_free_at_start, plan.shards))
    static = max(map(_static_bytes, plan.shards))
    beside = max(
        one.low_bytes - one.components.get("context", 0) - _static_bytes(one)
        for one in plan.shards
    )
    part = 1 - beside / smallest if smallest > 0 else 0.0
    ratio = int(CENTS * max(0.0, min(MEMORY_RATIO, part))) / CENTS
    if static > ratio * smallest:
        raise NoSuchLaunch(
            sentence(
                "It takes {ratio} of the memory that is free on the fullest GPU for "
                "weights and KV cache on every GPU. That is {taken}, and this plan "
                "needs {need}.",
                ratio=ratio,
                taken=gib(ratio * max(0, smallest)),
                need=gib(static),
            )
        )
    return ratio


def _check_balance(plan: Plan) -> None:
    """Raise NoSuchLaunch if SGLang refuses the free memory of the Gpus of a copy."""
    copies: dict[int, list[int]] = {}
    for shard in plan.shards:
        copies.setdefault(shard.replica, []).append(_free_at_start(shard))
    for free in copies.values():
        if min(free) < LEAST_BALANCE * max(free):
            raise NoSuchLaunch(
                sentence(
                    "It cuts layers only across GPUs with about as much free memory, "
                    "and here {least} and {most} are free.",
                    least=gib(min(free)),
                    most=gib(max(free)),
                )
            )


def _free_at_start(shard: Shard) -> int:
    """Return the free bytes that a process of SGLang finds beside its own context."""
    return shard.free_bytes - shard.components.get("context", 0)


def _static_bytes(shard: Shard) -> int:
    return sum(shard.components.get(name, 0) for name in STATIC)


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


def _script(
    plan: Plan, words: Sequence[str], *, layers_variable: str, adapts: bool = False
) -> str:
    """Return the script.

    Args:
        plan: the Plan.
        words: of the command, without the folder of the model.
        layers_variable: the environment variable for the blocks of uneven stages.
        adapts: whether it serves adapters, whose folder is in ADAPTER.
    """
    blocks = _stage_blocks(plan)
    lines = [
        "#!/bin/sh",
        head_comment(plan),
        "# Its first argument is the folder of the model. Other options may follow.",
        "set -eu",
        *visible(plan.shards),
        INDICES,
    ]
    if len(set(blocks)) > 1:
        lines.append(f"export {layers_variable}={','.join(map(str, blocks))}")
    # The folder follows the last option of SGLang, and "serve" of vLLM.
    place = len(words) if words[-1].startswith("--model") else 2
    told = [quote(word) for word in words]
    told.insert(place, '"$folder"')
    lines += ["folder=${1:?name the folder of the model}", "shift"]
    if adapts:
        lines += [
            "# Requests name the adapters as their model: adapter.",
            "adapter=${ADAPTER:?say ADAPTER=the folder of the adapters}",
        ]
        told.append('--lora-modules="adapter=$adapter"')
    return "\n".join([*lines, f'exec {" ".join(told)} "$@"']) + "\n"
