"""`manage.py ssh_authority`: the lines of sshd_config, and a new key."""

from typing import Any

from django.core.management.base import CommandParser
from django.utils import timezone

from placement.access import ssh_authority
from reservations.store.audit_log import audit_act
from telemetry.web.plain_commands import PlainCommand

NODE_DIR = "/var/lib/gpuportal-node"
"""GPUPORTAL_NODE_DIR of ``deploy/node.env.example``."""


class Command(PlainCommand):
    """Prints the public key of the ssh authority and what a node's sshd needs."""

    help = "Print the ssh certificate authority and the lines for sshd_config."

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the options."""
        parser.add_argument(
            "--rotate",
            action="store_true",
            help="make a new key; certificates of the previous one end",
        )
        parser.add_argument(
            "--node-dir", default=NODE_DIR, help="GPUPORTAL_NODE_DIR of the nodes"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        """Print the key. With --rotate, replace it first."""
        if options["rotate"]:
            ssh_authority.rotate()
            audit_act(
                verb="ssh-authority.rotated",
                subject="site",
                actor=None,
                now=timezone.now(),
            )
        folder = f"{options['node_dir'].rstrip('/')}/ssh"
        self.stdout.write(
            f"# The authority of this portal: {ssh_authority.authority_line()}\n"
            "# For a node's /etc/ssh/sshd_config; then: systemctl reload ssh\n"
            f"TrustedUserCAKeys {folder}/ca.pub\n"
            f"AuthorizedPrincipalsFile {folder}/principals/%u\n"
            "HostKey /etc/ssh/ssh_host_ed25519_key\n"
            f"HostCertificate {folder}/host-cert.pub"
        )
