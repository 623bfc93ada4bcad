"""torchrun: one process per Gpu, on one Node or with a rendezvous at the first.

Options: torch 2.13, "torchrun (Elastic Launch)".
"""

from collections.abc import Sequence
from shlex import quote

from placement.planner.launch.files.launch_file_error import head_comment, one_line
from placement.planner.values.plan import Plan, Shard

PORT = 29_500
CUDA_UUIDS = ("GPU-", "MIG-")
"""The first letters of a UUID that CUDA_VISIBLE_DEVICES can name. CUDA ignores any
other name that is not an index, and all names after it.
"""


def arguments(plan: Plan, *, node_rank: int = 0, endpoint: str = "") -> list[str]:
    """Return torchrun and its options, which a script has to follow.

    Args:
        node_rank: the rank of the addressed Node of the Plan.
        endpoint: host:port of the rendezvous; "" for a Plan of one Node.
    """
    counts = gpus_by_node(plan)
    per_node = str(len(counts[node_rank][1]))
    if len(counts) == 1:
        return [
            "torchrun",
            "--standalone",
            "--nnodes=1",
            f"--nproc-per-node={per_node}",
        ]
    return [
        "torchrun",
        f"--nnodes={len(counts)}",
        f"--nproc-per-node={per_node}",
        f"--node-rank={node_rank}",
        "--rdzv-backend=c10d",
        f"--rdzv-endpoint={endpoint or f'{counts[0][0]}:{PORT}'}",
        "--rdzv-id=gpuportal",
    ]


def gpus_by_node(plan: Plan) -> list[tuple[str, list[Shard]]]:
    """Return (Node, its Shards by rank), in the order of the first ranks."""
    found: dict[str, list[Shard]] = {}
    for shard in plan.shards:
        found.setdefault(shard.node, []).append(shard)
    return list(found.items())


def script(plan: Plan) -> str:
    """Return a shell script that starts a Plan. Its arguments are the user's script and
    that script's arguments.
    """
    nodes = gpus_by_node(plan)
    lines = [
        "#!/bin/sh",
        head_comment(plan),
        "# Usage: sh launch.sh YOUR_SCRIPT.py [its arguments]",
        "set -eu",
        'plan=$(dirname "$0")/plan.json',
        "export GPUPORTAL_PLAN=$plan",
    ]
    if len(nodes) == 1:
        lines += [*visible(nodes[0][1]), f'exec {_words(arguments(plan))} "$@"']
        return "\n".join(lines) + "\n"
    lines += [
        "# Run it on each of these nodes at the same time; NODE_RANK tells them apart.",
        f"first={quote(f'{nodes[0][0]}:{PORT}')}",
        "endpoint=${ENDPOINT:-$first}",
        'case "${NODE_RANK:?say NODE_RANK=0 to ' + str(len(nodes) - 1) + '}" in',
    ]
    for rank, (node, shards) in enumerate(nodes):
        words = _words(arguments(plan, node_rank=rank, endpoint="ENDPOINT"))
        words = words.replace("--rdzv-endpoint=ENDPOINT", '--rdzv-endpoint="$endpoint"')
        lines += [
            f"{rank})  # {one_line(node)}",
            *(f"    {line}" for line in visible(shards)),
            f'    exec {words} "$@" ;;',
        ]
    lines += [
        '*) echo "there is no node $NODE_RANK in this plan" >&2; exit 2 ;;',
        "esac",
    ]
    return "\n".join(lines) + "\n"


def visible(shards: Sequence[Shard]) -> list[str]:
    """Return lines that set CUDA_VISIBLE_DEVICES unless it is already set.

    Indices are those of nvidia-smi, which counts in the order of the PCI bus.
    """
    names = quote(",".join(_cuda_name(shard) for shard in shards))
    return [
        'if [ -z "${CUDA_VISIBLE_DEVICES+set}" ]; then',
        f"    export CUDA_DEVICE_ORDER=PCI_BUS_ID CUDA_VISIBLE_DEVICES={names}",
        "fi",
    ]


def _cuda_name(shard: Shard) -> str:
    """Return the UUID of a Gpu, or its index if CUDA cannot know the UUID."""
    index = shard.gpu_label.rpartition(":")[2]
    known = shard.gpu_uuid.startswith(CUDA_UUIDS) or not index.isdecimal()
    return shard.gpu_uuid if known else index


def _words(words: Sequence[str]) -> str:
    return " ".join(quote(word) for word in words)
