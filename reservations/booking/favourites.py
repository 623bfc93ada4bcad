"""The GPUs and classes that a User has starred."""

from django.db import transaction
from django.db.models import Q

from reservations.models import User
from reservations.models.favourite import Favourite
from reservations.rules.errors import NotFound
from telemetry.models import Gpu, Pool
from telemetry.protocol.sentences import sentence


@transaction.atomic(durable=True)
def star_gpu(*, user: User, gpu_id: int, wanted: bool) -> None:
    """Star one GPU, or remove its star. A repeated call changes nothing.

    Raises:
        NotFound: no GPU with this number is shown.
    """
    gpu = Gpu.objects.shown().filter(pk=gpu_id).first()
    if gpu is None:
        raise NotFound(what=sentence("GPU number {gpu_id}", gpu_id=gpu_id))
    if wanted:
        Favourite.objects.get_or_create(user=user, gpu=gpu)
    else:
        Favourite.objects.filter(user=user, gpu=gpu).delete()


@transaction.atomic(durable=True)
def star_class(*, user: User, gpu_class: str, wanted: bool) -> None:
    """Star all GPUs of a class, or remove that star. A repeated call changes nothing.

    Raises:
        NotFound: no class with this name.
    """
    pools = list(Pool.objects.filter(gpu_class=gpu_class))
    if not pools:
        raise NotFound(what=sentence("class {gpu_class}", gpu_class=gpu_class))
    for pool in pools:
        if wanted:
            Favourite.objects.get_or_create(user=user, pool=pool)
        else:
            Favourite.objects.filter(user=user, pool=pool).delete()


def favourite_gpus(user_pk: int) -> frozenset[int]:
    """Return the Gpus that a User starred, directly or by their Pool. One query."""
    own = Favourite.objects.filter(user_id=user_pk)
    starred = Q(pk__in=own.values("gpu_id")) | Q(pool_id__in=own.values("pool_id"))
    return frozenset(
        Gpu.objects.filter(starred).order_by().values_list("pk", flat=True)
    )
