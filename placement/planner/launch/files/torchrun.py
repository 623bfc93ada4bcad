"""torchrun: one process per Gpu, on one Node or with a rendezvous at the first.

Options: torch 2.13, "torchrun (Elastic Launch)".
"""

from collections.abc import Sequence
from shlex import quote

from placement.planner.values.plan import Plan

PORT = 29_500


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


def gpus_by_node(plan: Plan) -> list[tuple[str, list[str]]]:
    """Return (Node, UUIDs in order of their ranks), in the order of the first ranks."""
    found: dict[str, list[str]] = {}
    for shard in plan.shards:
        found.setdefault(shard.node, []).append(shard.gpu_uuid)
    return list(found.items())


def script(plan: Plan) -> str:
    """Return a shell script that starts a Plan. Its arguments are the user's script and
    that script's arguments.
    """
    nodes = gpus_by_node(plan)
    lines = [
        "#!/bin/sh",
        f"# {plan.title}: {plan.model}".replace("\n", " "),
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
        f"endpoint=${{ENDPOINT:-{nodes[0][0]}:{PORT}}}",
        'case "${NODE_RANK:?say NODE_RANK=0 to ' + str(len(nodes) - 1) + '}" in',
    ]
    for rank, (node, uuids) in enumerate(nodes):
        words = _words(arguments(plan, node_rank=rank, endpoint="ENDPOINT"))
        words = words.replace("--rdzv-endpoint=ENDPOINT", '--rdzv-endpoint="$endpoint"')
        lines += [
            f"{rank})  # {node}",
            *(f"    {line}" for line in visible(uuids)),
            f'    exec {words} "$@" ;;',
        ]
    lines += [
        '*) echo "there is no node $NODE_RANK in this plan" >&2; exit 2 ;;',
        "esac",
    ]
    return "\n".join(lines) + "\n"


def visible(uuids: Sequence[str]) -> list[str]:
    """Return lines that set CUDA_VISIBLE_DEVICES unless it is already set."""
    return [
        f"CUDA_VISIBLE_DEVICES=${{CUDA_VISIBLE_DEVICES-{','.join(uuids)}}}",
        "export CUDA_VISIBLE_DEVICES",
    ]


def _words(words: Sequence[str]) -> str:
    return " ".join(quote(word) for word in words)
