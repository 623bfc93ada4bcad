"""Which Gpus a User has starred, alone or with their class."""

from django.db.models import Q

from reservations.models.favourite import Favourite
from telemetry.models import Gpu


def favourite_gpus(user_pk: int) -> frozenset[int]:
    """Return the Gpus that a User starred, alone or by their Pool; one query."""
    own = Favourite.objects.filter(user_id=user_pk)
    starred = Q(pk__in=own.values("gpu_id")) | Q(pool_id__in=own.values("pool_id"))
    return frozenset(
        Gpu.objects.filter(starred).order_by().values_list("pk", flat=True)
    )
