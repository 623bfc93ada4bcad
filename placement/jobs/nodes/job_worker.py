"""The node worker that runs the jobs of a node.

It is the node's own, except on nodes of Slurm: there one worker on a host of Slurm, the
agent, submits the jobs of all nodes (SLURM_AGENT).
"""

from django.conf import settings
from django.db.models import Q

from placement.models import Job
from placement.protocol.commands import SlurmPlace
from reservations.rules.engine_names import hold_name
from telemetry.models import Gpu, Node


def worker_name(node: Node) -> str:
    """Return the name of the worker to which the commands for a node go."""
    return settings.SLURM_AGENT if node.engine == Node.Engine.SLURM else node.name


def served_by(worker: str) -> Q:
    """Return a filter for rows with a ``node`` whose jobs this worker runs."""
    own = Q(node__name=worker)
    if worker and worker == settings.SLURM_AGENT:
        return own | Q(node__engine=Node.Engine.SLURM)
    return own


def serves(worker: Node, node: Node) -> bool:
    """Return whether this worker runs the jobs of a node."""
    return worker_name(node) == worker.name


def isolating_node(node: Node) -> Node:
    """Return the node whose isolation counts for the jobs of a node.

    Slurm separates the users on its nodes. The agent has to become each of them.
    """
    if node.engine != Node.Engine.SLURM:
        return node
    return Node.objects.filter(name=settings.SLURM_AGENT).first() or node


def place_of(job: Job) -> SlurmPlace | None:
    """Return where a job runs in Slurm; None: it runs on the portal's own node."""
    if job.node.engine != Node.Engine.SLURM:
        return None
    all_gpus = Gpu.objects.shown().filter(node=job.node, present=True).count()
    return SlurmPlace(
        node=job.node.name,
        reservation=hold_name(settings.SLURM_SITE, job.reservation_id),
        whole_node=len(job.gpu_ids) == all_gpus,
    )
