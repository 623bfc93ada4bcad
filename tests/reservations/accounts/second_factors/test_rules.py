"""Codes of apps, recovery codes, and who needs a second factor."""

from datetime import UTC, datetime, timedelta

import pytest

from reservations.accounts.identities.provider_settings import read_login_settings
from reservations.accounts.second_factors.rules import (
    LOCKED,
    MOST_WRONG,
    Demand,
    FactorPolicy,
    locked_until,
    matching_step,
    plain_code,
    recovery_code,
)

SECRET = b"12345678901234567890"
"""Of RFC 6238, appendix B. Its codes have eight digits; ours are the last six."""
NOW = datetime(2026, 11, 28, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("at", "code"),
    [
        (59, "287082"),
        (1111111109, "081804"),
        (1234567890, "005924"),
        (2000000000, "279037"),
    ],
)
def test_codes_are_those_of_the_rfc(at, code):
    assert matching_step(SECRET, code, now_seconds=at, last_step=0) == at // 30
    # A clock may be a step off, and no more.
    for off, step in ((-30, at // 30), (30, at // 30), (-61, None), (61, None)):
        found = matching_step(SECRET, code, now_seconds=at + off, last_step=0)
        assert found == step
    # No code is taken twice, and none of an earlier step.
    assert matching_step(SECRET, code, now_seconds=at, last_step=at // 30) is None


@pytest.mark.parametrize("code", ["", "28708", "2870822", "٢٨٧٠٨٢", "287 82", "²87082"])
def test_other_texts_are_no_codes(code):
    assert matching_step(SECRET, code, now_seconds=59, last_step=0) is None


def test_a_recovery_code_has_80_bits_and_may_be_typed_loosely():
    code = recovery_code(bytes(range(246, 256)))
    assert plain_code(code) == plain_code(f" {code.upper().replace('-', ' ')} ")
    assert len(plain_code(code)) * 5 == 80
    assert recovery_code(b"\xff" * 10) == "7777-7777-7777-7777"


def test_wrong_codes_lock_the_app_for_a_while():
    assert locked_until(MOST_WRONG - 1, NOW, NOW) is None
    assert locked_until(MOST_WRONG, NOW, NOW + timedelta(minutes=14)) == NOW + LOCKED
    assert locked_until(MOST_WRONG, NOW, NOW + LOCKED) is None


@pytest.mark.parametrize(
    ("policy", "given", "demand"),
    [
        (FactorPolicy(), {"operator": False}, Demand.NONE),
        (FactorPolicy("off"), {}, Demand.NONE),
        (
            FactorPolicy("recommended"),
            {"asked_at": NOW - timedelta(days=99)},
            Demand.RECOMMENDED,
        ),
        (FactorPolicy("required"), {"asked_at": None}, Demand.RECOMMENDED),
        (
            FactorPolicy("required"),
            {"asked_at": NOW - timedelta(days=13)},
            Demand.RECOMMENDED,
        ),
        (
            FactorPolicy("required"),
            {"asked_at": NOW - timedelta(days=14)},
            Demand.REQUIRED,
        ),
        (FactorPolicy("required", 0), {"asked_at": NOW}, Demand.REQUIRED),
        (FactorPolicy("required", 0), {"by_provider": True}, Demand.NONE),
        (
            FactorPolicy("required", 0, after_providers=True),
            {"by_provider": True},
            Demand.REQUIRED,
        ),
    ],
)
def test_operators_are_asked_first_and_refused_after_the_grace(policy, given, demand):
    facts = {"operator": True, "by_provider": False, "asked_at": NOW} | given
    assert policy.demand(**facts, now=NOW) is demand


@pytest.mark.parametrize(
    ("environ", "policy", "problems"),
    [
        ({}, FactorPolicy("required"), []),
        ({"SECOND_FACTOR": "off"}, FactorPolicy("off"), []),
        (
            {"SECOND_FACTOR": "recommended", "SECOND_FACTOR_GRACE_DAYS": "30"},
            FactorPolicy("recommended", 30),
            [],
        ),
        (
            {"SECOND_FACTOR_AFTER_PROVIDER": "1"},
            FactorPolicy("required", after_providers=True),
            [],
        ),
        (
            {
                "SECOND_FACTOR": "yes",
                "SECOND_FACTOR_GRACE_DAYS": "-1",
                "SECOND_FACTOR_AFTER_PROVIDER": "on",
            },
            FactorPolicy("required"),
            [
                "SECOND_FACTOR",
                "SECOND_FACTOR_GRACE_DAYS",
                "SECOND_FACTOR_AFTER_PROVIDER",
            ],
        ),
    ],
)
def test_the_settings_of_a_site(environ, policy, problems):
    found = read_login_settings(environ, str, production=True)
    assert found.second_factor == policy
    assert [one.partition(":")[0] for one in found.problems] == problems


def test_a_development_site_never_forces_anybody():
    found = read_login_settings({}, str, production=False)
    assert found.second_factor.operators == "recommended"
