"""GPUs and classes that a User has starred."""

from django.db import models
from django.db.models import Q

from reservations.models.accounts import User
from telemetry.models import Gpu, Pool


class Favourite(models.Model):
    """One star of a User: on a GPU, or on all GPUs of a Pool."""

    user = models.ForeignKey(User, on_delete=models.CASCADE, related_name="favourites")
    gpu = models.ForeignKey(
        Gpu, null=True, blank=True, on_delete=models.CASCADE, related_name="+"
    )
    pool = models.ForeignKey(
        Pool, null=True, blank=True, on_delete=models.CASCADE, related_name="+"
    )

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=Q(gpu=None, pool__isnull=False)
                | Q(gpu__isnull=False, pool=None),
                name="a_favourite_is_a_gpu_or_a_pool",
            ),
            models.UniqueConstraint(
                fields=["user", "gpu"], name="one_star_per_user_and_gpu"
            ),
            models.UniqueConstraint(
                fields=["user", "pool"], name="one_star_per_user_and_pool"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.user} likes {self.gpu or self.pool}"
