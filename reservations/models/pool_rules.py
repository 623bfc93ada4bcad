"""The operator's rules about machines: pools, their quotas, and closed times.

The audit log has every change with its author and the old values.
"""

from datetime import datetime

from django.core.validators import MinValueValidator
from django.db import models
from django.utils import timezone
from django.utils.translation import gettext_lazy

from reservations.models.accounts import Account, Membership, User
from reservations.rules.prices import PEAK_LENGTH
from telemetry.protocol.sentences import sentence


class PoolRule(models.Model):
    """The groups that may book a Pool, its peak hours, and whether it has quotas.

    A Pool without a rule is open to all, within the general quotas, and costs the same
    at any time. ``restricted`` and ``limited`` repeat facts from other tables, so that
    a booking without such rules needs no extra query. ``operations/pools.py`` keeps
    them current.
    """

    pool = models.OneToOneField(
        "telemetry.Pool", on_delete=models.CASCADE, related_name="rule"
    )
    accounts = models.ManyToManyField(
        Account,
        blank=True,
        related_name="pool_rules",
        help_text="Groups that may book, with their subgroups. None: everybody.",
    )
    peak = models.CharField(
        max_length=PEAK_LENGTH,
        blank=True,
        editable=False,
        help_text="Peak hours as rules/prices.py writes them; empty: none.",
    )
    restricted = models.BooleanField(default=False, editable=False)
    limited = models.BooleanField(default=False, editable=False)

    class Meta:
        ordering = ["pool__gpu_class"]

    def __str__(self) -> str:
        return f"rule of {self.pool}"


class PoolQuota(models.Model):
    """A limit in one Pool, of a Membership or of an Account with all below it."""

    pool = models.ForeignKey(
        "telemetry.Pool", on_delete=models.CASCADE, related_name="quotas"
    )
    membership = models.ForeignKey(
        Membership,
        null=True,
        blank=True,
        on_delete=models.CASCADE,
        related_name="pool_quotas",
    )
    account = models.ForeignKey(
        Account,
        null=True,
        blank=True,
        on_delete=models.CASCADE,
        related_name="pool_quotas",
    )
    quota_gpu_seconds = models.BigIntegerField(
        validators=[MinValueValidator(0)],
        help_text="Weighted GPU-seconds in any rolling 7 days, on this pool's GPUs.",
    )

    class Meta:
        ordering = ["pool__gpu_class", "account__name", "membership_id"]
        constraints = [
            models.CheckConstraint(
                condition=models.Q(membership=None) ^ models.Q(account=None),
                name="pool_quota_of_one_side",
            ),
            models.UniqueConstraint(
                fields=["pool", "membership"],
                condition=models.Q(account=None),
                name="one_pool_quota_per_membership",
            ),
            models.UniqueConstraint(
                fields=["pool", "account"],
                condition=models.Q(membership=None),
                name="one_pool_quota_per_account",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.account or self.membership} on {self.pool}"


class ClosureQuerySet(models.QuerySet["Closure"]):
    """Reads of Closures."""

    def standing(self, start: datetime, end: datetime) -> "ClosureQuerySet":
        """Closures that are not cancelled and whose half-open Window meets [start,
        end).
        """
        return self.filter(cancelled_at=None, start__lt=end, end__gt=start)


class Closure(models.Model):
    """Time in which Gpus cannot be booked, or only by one Account's members.

    It is over when its end has passed. ``end`` moves to now when it is ended early.
    """

    class Kind(models.TextChoices):
        MAINTENANCE = "maintenance", sentence("Maintenance")
        BLACKOUT = "blackout", sentence("Blackout")
        TEACHING = "teaching", sentence("Teaching slot")

    class Scope(models.TextChoices):
        GPUS = "gpus", sentence("These GPUs")
        NODE = "node", sentence("Every GPU of a node")
        POOL = "pool", sentence("Every GPU of a pool")
        SITE = "site", sentence("Every GPU")

    kind = models.CharField(max_length=12, choices=Kind)
    scope = models.CharField(max_length=4, choices=Scope)
    start = models.DateTimeField()
    end = models.DateTimeField(help_text="Half-open.")
    reason = models.CharField(max_length=200)
    gpus = models.ManyToManyField("telemetry.Gpu", blank=True, related_name="closures")
    node = models.ForeignKey(
        "telemetry.Node",
        null=True,
        blank=True,
        on_delete=models.PROTECT,
        related_name="closures",
    )
    pool = models.ForeignKey(
        "telemetry.Pool",
        null=True,
        blank=True,
        on_delete=models.PROTECT,
        related_name="closures",
    )
    account = models.ForeignKey(
        Account,
        null=True,
        blank=True,
        on_delete=models.PROTECT,
        related_name="closures",
        help_text="Teaching: whose members may book, with everything below it.",
    )
    created_at = models.DateTimeField(default=timezone.now)
    created_by = models.ForeignKey(
        User, null=True, on_delete=models.PROTECT, related_name="+"
    )
    cancelled_at = models.DateTimeField(null=True, blank=True)
    version = models.PositiveIntegerField(default=1)

    objects = ClosureQuerySet.as_manager()

    class Meta:
        verbose_name = gettext_lazy("closure")
        verbose_name_plural = gettext_lazy("closures")
        ordering = ["start", "pk"]
        indexes = [models.Index(fields=["end", "start"])]
        constraints = [
            models.CheckConstraint(
                condition=models.Q(end__gte=models.F("start")),
                name="closure_ends_after_its_start",
            ),
            models.CheckConstraint(
                condition=models.Q(kind="teaching", account__isnull=False)
                | (~models.Q(kind="teaching") & models.Q(account=None)),
                name="closure_account_is_a_course",
            ),
            models.CheckConstraint(
                condition=models.Q(scope="node", node__isnull=False, pool=None)
                | models.Q(scope="pool", pool__isnull=False, node=None)
                | models.Q(scope__in=["gpus", "site"], pool=None, node=None),
                name="closure_scope_names_its_place",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.get_kind_display()} {self.start:%F %R} to {self.end:%F %R}"
