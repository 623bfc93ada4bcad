"""Machines with Gpus, the Gpus, and the price of each class."""

import hashlib
import hmac
import secrets

from django.core.validators import RegexValidator
from django.db import models
from django.utils import timezone
from django.utils.translation import gettext_lazy as lazy

_ADDRESS = RegexValidator(
    r"^[A-Za-z0-9][A-Za-z0-9.:-]*$",
    lazy("a host name or an IP address, nothing else"),
)


class NodeQuerySet(models.QuerySet["Node"]):
    """Reads of Nodes."""

    def in_service(self) -> "NodeQuerySet":
        """Filter the Nodes that are not retired."""
        return self.filter(retired=False)

    def run_by_portal(self) -> "NodeQuerySet":
        """Filter the Nodes in service whose jobs the portal runs, by a node worker."""
        return self.in_service().filter(engine=Node.Engine.PORTAL)


class Node(models.Model):
    """A machine with Gpus. The portal's own run a node worker."""

    class Engine(models.TextChoices):
        """The system that gives out a node's Gpus. Each node has exactly one."""

        PORTAL = "portal", "GPU Portal"
        SLURM = "slurm", "Slurm"

    class Isolation(models.TextChoices):
        NONE = "none", lazy("none: no separate Unix user, ready recipes only")
        WATCHED = "watched", lazy("watched: own Unix user")
        ENFORCED = "enforced", lazy("enforced: own user and device list")

    class Channel(models.TextChoices):
        """State of a node's HTTPS channel to the portal, as the node reports it."""

        OK = "ok", "works"
        REFUSED = "refused", lazy("the portal refuses its token")
        DOWN = "down", lazy("it does not reach the portal")
        TOKEN = "token", lazy("its token file cannot be read")
        ORDER_KEY = "order_key", lazy("its order key is missing or not the portal's")

    class GateMode(models.TextChoices):
        """The mode that the operator chose for a node's device gate."""

        OPEN = "open", lazy("open: no gate")
        WATCH = "watch", lazy("watch: count, refuse nobody")
        GATED = "gated", lazy("gated: only holders open a GPU")

    class GateState(models.TextChoices):
        """State of the device gate, as the node reports it."""

        OPEN = "open", lazy("open")
        WATCH = "watch", lazy("watches")
        GATED = "gated", lazy("gated")
        FAILED = "failed", lazy("failed")
        UNAVAILABLE = "unavailable", lazy("not available")

    name = models.SlugField(max_length=63, unique=True)
    engine = models.CharField(
        max_length=10,
        choices=Engine,
        default=Engine.PORTAL,
        editable=False,
        help_text="The system that gives out its Gpus.",
    )
    token_hash = models.CharField(max_length=64, editable=False)
    simulated = models.BooleanField(default=False)
    maintenance = models.BooleanField(
        default=False, help_text=lazy("Nobody can book. Running jobs continue.")
    )
    draining = models.BooleanField(
        default=False,
        help_text=lazy(
            "No new bookings on its GPUs. Existing bookings and running jobs stay."
        ),
    )
    retired = models.BooleanField(
        default=False,
        help_text=lazy(
            "Retired: not shown, not bookable, and its token is invalid. Its "
            "history is kept."
        ),
    )
    isolation = models.CharField(
        max_length=10, choices=Isolation, default=Isolation.NONE
    )
    not_isolated = models.CharField(max_length=10, blank=True, editable=False)
    """Why its isolation is `none`: a value of `NotIsolated`, as the node reports it."""
    address = models.CharField(
        max_length=253,
        blank=True,
        validators=[_ADDRESS],
        help_text=lazy(
            "Where other nodes reach it, for jobs over several; empty: the "
            "host name that it reports."
        ),
    )
    ssh_address = models.CharField(
        lazy("ssh address"),
        max_length=253,
        blank=True,
        validators=[_ADDRESS],
        help_text=lazy(
            "Where users who have booked it may log in by ssh, for example "
            "node-a.lab.example. Empty: they may not, and no page mentions ssh."
        ),
    )
    driver_version = models.CharField(max_length=40, blank=True)
    cuda_version = models.CharField(max_length=20, blank=True)
    release = models.CharField(
        max_length=40,
        blank=True,
        default="",
        db_default="",
        editable=False,
        help_text="Release of its worker's code; empty: 0.1.0 or not reported.",
    )
    boot_id = models.CharField(max_length=40, blank=True, editable=False)
    fast_links = models.JSONField(
        default=list, blank=True, help_text="Pairs of UUIDs joined by NVLink."
    )
    links = models.JSONField(
        default=list,
        blank=True,
        help_text="[UUID, UUID, distance] of the other pairs, as nvidia-smi topo says.",
    )
    extras = models.JSONField(
        default=list,
        blank=True,
        help_text="Optional packages that its worker has: deepspeed.",
    )
    ram_total_bytes = models.BigIntegerField(null=True, editable=False)
    ram_free_bytes = models.BigIntegerField(null=True, editable=False)
    disk_free_bytes = models.BigIntegerField(
        null=True, editable=False, help_text="Where its jobs work."
    )
    enrolled_at = models.DateTimeField(default=timezone.now)
    last_seen_at = models.DateTimeField(null=True, blank=True)
    channel_at = models.DateTimeField(
        null=True,
        blank=True,
        editable=False,
        help_text="When the node last showed its token over HTTPS.",
    )
    channel_state = models.CharField(
        max_length=10, choices=Channel, blank=True, editable=False
    )
    channel_detail = models.CharField(max_length=200, blank=True, editable=False)

    gate_mode = models.CharField(
        lazy("device gate"), max_length=10, choices=GateMode, default=GateMode.OPEN
    )
    gate_state = models.CharField(
        max_length=12, choices=GateState, blank=True, editable=False
    )
    gate_reason = models.CharField(max_length=300, blank=True, editable=False)
    gate_report = models.JSONField(
        default=dict,
        blank=True,
        editable=False,
        help_text="refusals: [uid, user, count]; uncovered, unknown: names.",
    )
    gate_sequence = models.BigIntegerField(
        default=0, editable=False, help_text="Number of the last order to the gate."
    )
    gate_digest = models.CharField(
        max_length=64, blank=True, editable=False, help_text="Of that order's grants."
    )
    gate_sent_at = models.DateTimeField(null=True, blank=True, editable=False)

    objects = NodeQuerySet.as_manager()

    class Meta:
        verbose_name = lazy("node")
        verbose_name_plural = lazy("nodes")
        ordering = ["name"]

    def __str__(self) -> str:
        return self.name

    @property
    def gate(self) -> str:
        """Return the device gate as pages show it: a mode, ``failed``,
        ``unavailable``, or ``pending`` until the node has reported the mode."""
        trouble = (self.GateState.FAILED, self.GateState.UNAVAILABLE)
        if self.gate_state in trouble:
            return self.gate_state
        current = self.gate_state or self.GateState.OPEN
        return self.gate_mode if current == self.gate_mode else "pending"

    @staticmethod
    def hash_token(token: str) -> str:
        """Return the stored form of a node token (random, so no salt)."""
        return hashlib.sha256(token.encode()).hexdigest()

    def new_token(self) -> str:
        """Make a token, set its hash, and return the token. Does not save the row."""
        token = secrets.token_urlsafe(32)
        self.token_hash = self.hash_token(token)
        return token

    def accepts(self, token: str) -> bool:
        """Return whether this is the token of a node in service, in constant time."""
        same = hmac.compare_digest(self.token_hash, self.hash_token(token))
        return same and not self.retired


class Pool(models.Model):
    """The Gpus of one class, with the same rules and the same weight."""

    class Response(models.TextChoices):
        OBSERVE = "observe", lazy("observe: an alert, nothing else")
        NOTIFY = "notify", lazy("notify: tell both people in the portal")
        WARN = "warn", lazy("warn: also on the terminal of the process")
        STOP = "stop", lazy("stop: also end the process")

    gpu_class = models.CharField(max_length=80, unique=True)
    weight = models.PositiveIntegerField(
        help_text=lazy("Credits for 1 GPU-hour. Default: the memory in units of 8 GiB.")
    )
    peak_flops = models.FloatField(
        default=0,
        help_text=lazy("Dense 16-bit FLOP/s from the data sheet; 0: unknown."),
    )
    response = models.CharField(
        max_length=10,
        choices=Response,
        default=Response.OBSERVE,
        help_text=lazy(
            "What the portal does about someone else's process on a booked GPU."
        ),
    )
    response_dry_run = models.BooleanField(
        lazy("dry run"),
        default=True,
        help_text=lazy("Steps are only written to the audit log."),
    )
    may_adopt = models.BooleanField(
        lazy("book what runs"),
        default=True,
        help_text=lazy(
            "Whether a person whose process runs on an unbooked GPU may book it with "
            "one click."
        ),
    )

    class Meta:
        verbose_name = lazy("pool")
        verbose_name_plural = lazy("pools")
        ordering = ["gpu_class"]

    def __str__(self) -> str:
        return self.gpu_class


class GpuQuerySet(models.QuerySet["Gpu"]):
    """Reads of Gpus."""

    def bookable(self) -> "GpuQuerySet":
        """Filter Gpus that are present, whole, and neither under maintenance nor
        draining."""
        return self.filter(
            present=True,
            lost=False,
            maintenance=False,
            draining=False,
            mig=False,
            new=False,
            foreign=False,
            retired=False,
            node__maintenance=False,
            node__draining=False,
        )

    def shown(self) -> "GpuQuerySet":
        """Return the Gpus of the board, in the order of the live frame's rows."""
        return self.filter(retired=False).order_by("node__name", "index", "uuid")


class Gpu(models.Model):
    """One allottable card, identified by its NVML UUID and bound to one Node."""

    uuid = models.CharField(max_length=80, unique=True)
    node = models.ForeignKey(Node, on_delete=models.PROTECT, related_name="gpus")
    pool = models.ForeignKey(Pool, on_delete=models.PROTECT, related_name="gpus")
    index = models.PositiveSmallIntegerField()
    name = models.CharField(max_length=80)
    memory_total_bytes = models.BigIntegerField(help_text=lazy("0: unknown."))
    power_limit_watts = models.FloatField(null=True, blank=True)
    slowdown_celsius = models.FloatField(null=True, blank=True)
    sm_clock_max_mhz = models.PositiveIntegerField(null=True, blank=True)
    compute_capability = models.CharField(max_length=8, blank=True)
    pci_bus_id = models.CharField(max_length=32, blank=True)
    serial = models.CharField(max_length=40, blank=True)
    mig = models.BooleanField(
        default=False, help_text=lazy("Split into instances; not booked as a whole.")
    )
    mig_parent = models.CharField(
        max_length=80,
        blank=True,
        default="",
        help_text="UUID of the card that this instance is part of.",
    )
    mig_instance = models.PositiveSmallIntegerField(
        null=True, blank=True, help_text="Number of this GPU instance on its card."
    )
    new = models.BooleanField(
        default=False,
        help_text=lazy("Reported by its node but not yet approved, so not bookable."),
    )
    present = models.BooleanField(
        default=True, help_text="In the node's last roster; off: missing."
    )
    lost = models.BooleanField(
        default=False, help_text="The driver does not answer for it."
    )
    maintenance = models.BooleanField(
        default=False, help_text=lazy("Nobody can book it. Running jobs continue.")
    )
    foreign = models.BooleanField(
        default=False,
        help_text=lazy(
            "Another system (Slurm) manages it. It is shown as busy, cannot "
            "be booked, and opens no alerts about processes."
        ),
    )
    retired = models.BooleanField(
        default=False, help_text=lazy("Retired: not shown and not bookable.")
    )
    retired_with_node = models.BooleanField(
        default=False,
        editable=False,
        help_text="It was retired because its node was. It comes back with the node.",
    )
    draining = models.BooleanField(
        default=False,
        help_text=lazy("No new bookings. Existing bookings and running jobs stay."),
    )
    replaced_by = models.OneToOneField(
        "self",
        null=True,
        blank=True,
        on_delete=models.PROTECT,
        related_name="replaces",
        help_text=lazy("The GPU that replaced it. Its own history stays here."),
    )

    objects = GpuQuerySet.as_manager()

    class Meta:
        verbose_name = lazy("GPU")
        verbose_name_plural = lazy("GPUs")
        ordering = ["node__name", "index"]

    def __str__(self) -> str:
        return f"{self.node.name}:{self.index}"
