"""Which nodes are reserved by the number of their GPUs. Pure."""

import json
from pathlib import Path

import pytest

from telemetry.rules.slurm_use import WholeNodes
from telemetry.slurm.cluster_view import view_cluster
from telemetry.slurm.gpu_reservations import cpus_of_each, why_whole
from telemetry.slurm.gres import read_gres
from telemetry.slurm.slurm_commands import SlurmVersion
from telemetry.slurm.slurm_records import (
    SlurmNode,
    read_jobs,
    read_nodes,
    read_reservations,
)

pytestmark = pytest.mark.pure
DATA = Path(__file__).parents[2] / "data" / "slurm" / "slurm-26.05.5.json"
TOLD = json.loads(DATA.read_text())
NEW = SlurmVersion(25, 5, 3)
CONFIG = {
    "AccountingStorageType": "accounting_storage/slurmdbd",
    "AccountingStorageTRES": "cpu,mem,gres/gpu,gres/gpu:a100",
}


def node(gres: str, cpus: int | None = 8) -> SlurmNode:
    return SlurmNode("g1", frozenset(), read_gres(gres), cpus=cpus)


GOOD = node("gpu:a100:4(S:0-1)")


@pytest.mark.parametrize(
    ("one", "version", "config", "why"),
    [
        (GOOD, NEW, {}, None),
        (node("gpu:4(S:0)"), NEW, {}, None),
        (GOOD, SlurmVersion(25, 5, 2), {}, WholeNodes.OLD),
        (GOOD, SlurmVersion(22, 5, 8), {}, WholeNodes.OLD),
        (
            GOOD,
            NEW,
            {"AccountingStorageType": "accounting_storage/none"},
            WholeNodes.NO_DATABASE,
        ),
        (GOOD, NEW, {"AccountingStorageTRES": "cpu"}, WholeNodes.NOT_TRACKED),
        (node("gpu:v100:4(S:0)"), NEW, {}, WholeNodes.TYPE_NOT_TRACKED),
        (node("gpu:a100:2(S:0),gpu:v100:2(S:1)"), NEW, {}, WholeNodes.TYPES),
        (node("gpu:a100:2(S:0),gpu:2(S:1)"), NEW, {}, WholeNodes.TYPES),
        (node("gpu:a100:4"), NEW, {}, WholeNodes.NO_CORES),
        (node("gpu:a100:4(S:0)", cpus=2), NEW, {}, WholeNodes.NO_CORES),
        (node("gpu:a100:4(S:0)", cpus=None), NEW, {}, WholeNodes.NO_CORES),
        (node(""), NEW, {}, WholeNodes.TYPES),
    ],
)
def test_why_a_node_is_reserved_as_a_whole(one, version, config, why):
    assert why_whole(one, version, CONFIG | config) is why


def test_each_gpu_has_its_part_of_the_processors():
    assert cpus_of_each(GOOD) == 2
    assert cpus_of_each(node("gpu:a100:3(S:0)")) == 2


def test_what_26_05_printed_of_two_bookings_of_one_node():
    first, second = read_nodes(json.dumps(TOLD["nodes"]).encode())
    config = dict(
        (part.strip() for part in line.split("=", 1)) for line in TOLD["config"]
    )
    version = SlurmVersion(26, 5, 5)
    assert why_whole(first, version, config) is None
    assert why_whole(second, version, config) is WholeNodes.NO_CORES
    held = read_reservations(json.dumps(TOLD["reservations"]).encode())
    jobs = read_jobs(json.dumps(TOLD["jobs"]).encode())
    found, _other = view_cluster([first, second], jobs, held, now=held[0].start + 60)
    assert [(gpu.use.value, gpu.unix_user, gpu.reservation) for gpu in found.gpus] == [
        ("reserved", "alice", "gp_lab1_3"),
        ("reserved", "alice", "gp_lab1_3"),
        ("busy", "bob", "gp_lab1_4"),
        ("busy", "carol", ""),
    ]
