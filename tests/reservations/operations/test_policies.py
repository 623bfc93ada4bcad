"""The site's policy as it is kept: explained, bounded, and counted by version."""

import pytest
from django.core.exceptions import ValidationError
from django.db import IntegrityError, transaction

from reservations.models import SitePolicy
from reservations.store.booking_facts import site_policy

HIDDEN = {"id", "version"}


def test_every_field_says_what_it_means_its_unit_and_its_default(db) -> None:
    for field in SitePolicy._meta.fields:
        if field.name in HIDDEN:
            continue
        told = str(field.help_text)
        assert len(told) > 30 and "efault" in told, field.name
        if field.name.endswith("_seconds"):
            assert "seconds" in told, field.name
        if not isinstance(field.default, bool):
            assert str(field.default) in told, field.name


@pytest.mark.once
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("half_life_seconds", 1),
        ("grid_seconds", 420),
        ("grid_seconds", 0),
        ("longest_seconds", 40 * 86_400),
        ("flex_horizon_seconds", 15 * 86_400),
        ("late_return_ratio", 1.5),
        ("late_return_ratio", float("nan")),
        ("idle_util_pct", float("inf")),
        ("no_show_seconds", 0),
        ("stop_grace_seconds", 10**6),
        ("quota_gpu_seconds", -1),
        ("overstay_notice_seconds", 0),
    ],
)
def test_no_value_is_kept_that_breaks_the_site(db, name, value) -> None:
    policy = SitePolicy.current()
    setattr(policy, name, value)
    with pytest.raises(ValidationError) as refused:
        policy.save()
    assert name in refused.value.message_dict
    assert site_policy().version == 1


def test_each_change_is_a_version_that_can_be_read_again(db) -> None:
    policy = SitePolicy.current()
    policy.freeze_seconds = 6 * 3600
    policy.save()
    stale = SitePolicy.objects.get()
    policy.gpus_at_once = 2
    policy.save()
    stale.gpus_at_once = 3
    stale.save()
    now = site_policy()
    assert (now.version, now.gpus_at_once) == (4, 3)
    for version, gpus in ((1, 4), (2, 4), (3, 2), (4, 3)):
        then = SitePolicy.of_version(version)
        assert then is not None
        assert (then.version, then.gpus_at_once) == (version, gpus)
    assert SitePolicy.of_version(9) is None


def test_the_database_refuses_a_second_first_row(db) -> None:
    """Two requests to a new site both find no policy; `get_or_create` needs this."""
    SitePolicy.current()
    with pytest.raises(IntegrityError), transaction.atomic():
        SitePolicy.objects.create(pk=1)
    assert SitePolicy.current().version == 1
