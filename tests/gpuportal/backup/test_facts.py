"""The differences that count between a database and its restored copy."""

from copy import deepcopy

from gpuportal.backup.facts import differences, table_name
from reservations.models import Account, Voucher

ORIGINAL = {
    "balances": {"vision/alice/hold": 7200},
    "quotas": {"vision": {"shares": 3}},
    "ranks": [{"account": "vision", "fairshare": 0.5}],
    "tables": {"reservations.user": {"rows": 2, "sha256": "aa"}},
}


def changed(**parts):
    return {**deepcopy(ORIGINAL), **parts}


def test_the_same_figures_have_no_difference():
    assert list(differences(ORIGINAL, deepcopy(ORIGINAL), same_schema=True)) == []


def test_each_kind_of_difference_is_named_with_its_figures():
    restored = changed(
        balances={"vision/alice/hold": 3600, "vision/omar/charge": 1},
        quotas={},
        ranks=[],
        tables={"reservations.user": {"rows": 1, "sha256": "bb"}},
    )
    assert list(differences(ORIGINAL, restored, same_schema=True)) == [
        "balances: vision/alice/hold is 3600, not 7200",
        "balances: vision/omar/charge is 1, not None",
        "quotas: vision is None, not {'shares': 3}",
        "ranks: the rows of the Fair Tree are not the same",
        "reservations.user has 1 rows, not 2",
    ]


def test_other_contents_of_as_many_rows_are_found():
    restored = changed(tables={"reservations.user": {"rows": 2, "sha256": "bb"}})
    assert list(differences(ORIGINAL, restored, same_schema=True)) == [
        "reservations.user has the same number of rows with other contents"
    ]


def test_a_newer_schema_may_add_rows_and_columns_and_lose_none():
    more = changed(tables={"reservations.user": {"rows": 3, "sha256": "bb"}}, quotas={})
    assert list(differences(ORIGINAL, more, same_schema=False)) == []
    fewer = changed(tables={})
    assert list(differences(ORIGINAL, fewer, same_schema=False)) == [
        "reservations.user has 0 rows, not 2"
    ]


def test_a_renamed_model_is_compared_under_the_name_of_its_table():
    assert table_name(Account) == "reservations.account"
    assert table_name(Voucher) == "reservations.token"
