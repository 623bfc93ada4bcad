"""Record which machine signs in as which node, and find machines that are clones."""

from datetime import datetime, timedelta

from django.db import transaction
from django.utils.translation import gettext

from telemetry.models import Node, NodeIdentity
from telemetry.rules.boot_history import with_boot

SHOWN = timedelta(minutes=15)
"""How long two machines are reported after both were last heard. Each reports itself
once a minute."""


def record_join(
    *, node: Node, public_key: str, machine_hash: str, boot_id: str, now: datetime
) -> None:
    """Store the machine that joined as a Node. Runs in the caller's transaction."""
    row, _ = NodeIdentity.objects.select_for_update().get_or_create(node=node)
    if row.machine_hash and row.machine_hash != machine_hash:
        row.other_machine_at = now
    row.public_key, row.machine_hash = public_key, machine_hash
    row.boots, row.two_machines_at = [boot_id] if boot_id else [], None
    row.enrolment_hash, row.token_number = node.token_hash, 0
    row.refused_at = None
    row.join_count += 1
    row.joined_at = now
    row.save()


def record_boot(*, node: Node, boot_id: str, now: datetime) -> None:
    """Store the boot of the machine that just used a Node's token.

    Cost: one read, and a write when the boot is another one.
    """
    known = NodeIdentity.objects.filter(node=node).first()
    if not boot_id or (known and known.boots[:1] == [boot_id]):
        return
    with transaction.atomic():
        row, _ = NodeIdentity.objects.select_for_update().get_or_create(node=node)
        row.boots, two = with_boot(row.boots, boot_id)
        if two:
            row.two_machines_at = now
        row.save(update_fields=["boots", "two_machines_at"])


def identity_warnings(node: Node, now: datetime) -> list[str]:
    """Return in the reader's language what is wrong with a Node's machine."""
    row = NodeIdentity.objects.filter(node=node).first()
    if row is None:
        return []
    found = []
    if row.two_machines_at and now - row.two_machines_at < SHOWN:
        found.append(
            gettext(
                "Two machines use the token of %(node)s in turns, as after the disk of "
                "one was cloned. Stop the worker on the wrong one, then let the right "
                "one join again."
            )
            % {"node": node.name}
        )
    if row.refused_at and now - row.refused_at < SHOWN:
        found.append(
            gettext(
                "Two machines prove that they are %(node)s: %(first)s, and %(second)s, "
                "which is refused. Its disk is a clone or an older copy of the other "
                "one. On the machine that is not %(node)s, type systemctl disable "
                "--now gpuportal-node. If the refused one is the right one, let it "
                "join again."
            )
            % {
                "node": node.name,
                "first": row.proved_from or "?",
                "second": row.refused_from or "?",
            }
        )
    for other in machine_twins(row):
        why = (
            gettext(
                "%(node)s and %(other)s have the same machine id and the same key: the "
                "disk of one is a clone of the other. Delete /etc/gpuportal and "
                "/etc/machine-id on the clone, type systemd-machine-id-setup, and let "
                "it join again."
            )
            if other.public_key == row.public_key
            else gettext(
                "%(node)s and %(other)s have the same machine id, as machines of one "
                "image have. Delete /etc/machine-id on one of them, type "
                "systemd-machine-id-setup, and let it join again."
            )
        )
        found.append(why % {"node": node.name, "other": other.node.name})
    return found


def machine_twins(row: NodeIdentity) -> list[NodeIdentity]:
    """Return the other nodes in service with the same machine id."""
    if not row.machine_hash:
        return []
    rows = NodeIdentity.objects.filter(
        machine_hash=row.machine_hash, node__retired=False
    )
    return list(rows.exclude(pk=row.pk).select_related("node").order_by("node__name"))


def doubtful_nodes(now: datetime) -> list[tuple[Node, list[str]]]:
    """Return the nodes in service with a warning about their machine."""
    nodes = Node.objects.run_by_portal().exclude(identity=None)
    rows = ((node, identity_warnings(node, now)) for node in nodes)
    return [(node, warnings) for node, warnings in rows if warnings]
