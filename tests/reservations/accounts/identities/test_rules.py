"""Claims, and the rights that they give and take."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reservations.accounts.identities.rules import (
    MOST_GROUPS,
    OPERATOR,
    ClaimRight,
    Holder,
    Mapped,
    RightChanges,
    SignInRefused,
    check_sign_up,
    effect_sentences,
    read_claims,
    read_groups,
    right_changes,
    wanted_rights,
)

VISION, NLP = 1, 2
MAPPINGS = (
    Mapped("vision", VISION, "member"),
    Mapped("vision-heads", VISION, "head"),
    Mapped("nlp", NLP, "member"),
    Mapped("admins", None, "operator"),
)
MEMBER, HEAD = ClaimRight(VISION, "member"), ClaimRight(VISION, "head")


def holder(members=(), heads=(), operator=False, granted=(), elsewhere=()):
    sets = map(frozenset, (members, heads))
    return Holder(*sets, operator, frozenset(granted), frozenset(elsewhere))


def claims(**raw):
    return read_claims(
        {"sub": "7", **raw}, username_claim="login", groups_claim="realm.roles"
    )


@pytest.mark.parametrize(
    ("raw", "groups"),
    [
        ("vision", {"vision"}),
        ("", set()),
        ([], set()),
        (["a", "b", "a", 7, None, "", "x" * 256, "n\0"], {"a", "b"}),
        (None, None),
        ({"a": 1}, None),
        (True, None),
        (["x"] * (MOST_GROUPS + 1), None),
    ],
)
def test_groups_are_a_string_or_a_list(raw, groups):
    assert read_groups(raw) == groups


def test_claims_of_a_person():
    found = claims(
        login="ada",
        name="Ada",
        email="a@x.example",
        email_verified=True,
        realm={"roles": ["vision"]},
    )
    assert (found.username, found.name, found.mail) == ("ada", "Ada", "a@x.example")
    assert found.groups == {"vision"}
    assert claims(email="a@x.example", email_verified=False).mail == ""
    assert claims(**{"realm.roles": "x"}).groups == {"x"}
    assert claims(realm="text").groups is None
    bad = claims(login=["ada"], name={"a": 1}, email="nothing")
    assert (bad.username, bad.name, bad.mail) == ("", "", "")


def test_a_head_is_a_member_too():
    assert wanted_rights({"vision-heads"}, MAPPINGS) == {MEMBER, HEAD}


def test_a_missing_claim_changes_nothing():
    has = holder({VISION}, {VISION}, True, {MEMBER, HEAD, OPERATOR})
    assert right_changes(None, MAPPINGS, has) == RightChanges()
    gone = right_changes((), MAPPINGS, has)
    assert gone.lost == {MEMBER, HEAD, OPERATOR}


def test_what_was_given_by_hand_stays():
    assert right_changes((), MAPPINGS, holder({VISION}, {VISION}, True)).rights == set()
    # The claim makes a manual member a head, and ends only that.
    has = holder({VISION})
    assert right_changes({"vision-heads"}, MAPPINGS, has).gained == {HEAD}
    head = holder({VISION}, {VISION}, granted={HEAD})
    assert right_changes({"vision"}, MAPPINGS, head).lost == {HEAD}


def test_a_right_of_another_login_stays():
    both = holder({VISION}, granted={MEMBER}, elsewhere={MEMBER})
    found = right_changes((), MAPPINGS, both)
    assert found.lost == set() and found.forgotten == {MEMBER}
    noted = right_changes({"vision"}, MAPPINGS, holder({VISION}, elsewhere={MEMBER}))
    assert noted.noted == {MEMBER} and noted.gained == set()


def test_a_removed_member_comes_back_by_the_claim_only():
    removed = holder(granted={MEMBER})
    assert right_changes({"vision"}, MAPPINGS, removed).gained == {MEMBER}
    assert right_changes((), MAPPINGS, removed).forgotten == {MEMBER}


GROUPS = st.none() | st.sets(st.sampled_from([one.value for one in MAPPINGS]))


@given(st.lists(GROUPS, max_size=6), st.booleans(), st.booleans())
def test_after_any_sign_ins_the_last_claim_and_the_manual_rights_hold(
    sign_ins, member, operator
):
    manual = holder({VISION} if member else (), (), operator)
    has, last = manual, set()
    for groups in sign_ins:
        found = right_changes(groups, MAPPINGS, has)
        rights = {ClaimRight(pk, "member") for pk in has.members}
        rights |= {ClaimRight(pk, "head") for pk in has.heads}
        rights |= {OPERATOR} if has.operator else set()
        rights = (rights | found.gained) - found.lost
        assert found.gained.isdisjoint(found.lost)
        has = holder(
            {x.account_pk for x in rights if x.role == "member"},
            {x.account_pk for x in rights if x.role == "head"},
            OPERATOR in rights,
            (has.granted | found.gained | found.noted) - found.lost - found.forgotten,
        )
        last = last if groups is None else groups
    wanted = wanted_rights(last, MAPPINGS)
    assert has.members == manual.members | {
        x.account_pk for x in wanted if x.role == "member"
    }
    assert has.heads == {x.account_pk for x in wanted if x.role == "head"}
    assert has.operator == (operator or OPERATOR in wanted)


@pytest.mark.parametrize(
    ("sign_up", "groups", "username", "words"),
    [
        ("off", ["vision"], "ada", "only the lab admin makes accounts"),
        ("mapped", ["sports"], "ada", "none of your groups"),
        ("mapped", None, "ada", "none of your groups"),
        ("all", None, "", "no user name"),
        ("all", None, "a b", "no user name"),
    ],
)
def test_a_stranger_is_refused(sign_up, groups, username, words):
    who = claims(login=username, realm={"roles": groups})
    with pytest.raises(SignInRefused, match=words):
        check_sign_up(who, MAPPINGS, sign_up=sign_up, provider="Uni")


def test_the_preview_counts_people():
    plans = [
        RightChanges(gained=frozenset({MEMBER})),
        RightChanges(gained=frozenset({MEMBER, HEAD})),
        RightChanges(lost=frozenset({OPERATOR, ClaimRight(NLP, "member")})),
    ]
    names = {VISION: "vision", NLP: "nlp"}
    assert list(effect_sentences(plans, names, bound=1)) == [
        "1 person would no longer be an admin. The last admin stays one.",
        "1 person would become a head of vision.",
        "2 people would join vision.",
        "1 person would leave nlp.",
        "1 person holds reservations or sponsors a guest. The first sign-in "
        "after these have ended removes the membership.",
    ]


@pytest.mark.parametrize("subject", ["", "\ud800", "a\0b", "x" * 256, 7, None])
def test_a_subject_that_no_database_stores_is_refused(subject):
    with pytest.raises(SignInRefused, match="does not say who"):
        read_claims({"sub": subject}, username_claim="u", groups_claim="g")


def test_half_characters_and_unverified_mail_are_left_out():
    raw = {"sub": "7", "g": ["a", "\ud800"], "email": "a@b", "email_verified": "False"}
    found = read_claims(raw, username_claim="u", groups_claim="g")
    assert (found.groups, found.mail) == ({"a"}, "")
    assert (
        read_claims(
            raw | {"email_verified": "true"}, username_claim="u", groups_claim="g"
        ).mail
        == "a@b"
    )
