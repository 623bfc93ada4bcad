"""Metadata of a provider that cannot be read again."""

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest

from gpuportal.oidc import kept_answer
from gpuportal.oidc.kept_answer import KeptAnswer, ProviderAway
from gpuportal.saml.provider_metadata import LONGEST_SECONDS, metadata_of
from reservations.accounts.identities.saml_settings import SamlProvider
from tests.gpuportal.saml.identity_site import AUDIENCE, ISSUER, PORTAL, metadata

NOW = datetime.now(UTC).replace(microsecond=0)


@pytest.fixture
def clock(monkeypatch):
    """Return the monotonic clock of kept answers, which a test may set."""
    found = SimpleNamespace(at=1000.0)
    monotonic = SimpleNamespace(monotonic=lambda: found.at)
    monkeypatch.setattr(kept_answer, "time", monotonic)
    return found


def provider_of(file) -> SamlProvider:
    return SamlProvider(
        name="Uni",
        issuer=ISSUER,
        metadata=str(file),
        portal=PORTAL,
        entity_id=AUDIENCE,
    )


@pytest.mark.parametrize("readable", [True, False])
def test_old_metadata_are_used_for_a_day(tmp_path, clock, readable):
    file = tmp_path / "metadata.xml"
    file.write_text(metadata())
    provider = provider_of(file)
    first = metadata_of(provider)
    if not readable:
        file.unlink()
    clock.at += LONGEST_SECONDS - 1
    assert metadata_of(provider) == first
    clock.at += 2
    if readable:
        assert metadata_of(provider) == first
    else:
        with pytest.raises(ProviderAway):
            metadata_of(provider)


@pytest.mark.parametrize("where", ["EntityDescriptor xmlns:md", "IDPSSODescriptor"])
def test_old_metadata_are_not_used_after_their_end(tmp_path, time_machine, where):
    file = tmp_path / "metadata.xml"
    ends = f'validUntil="{NOW + timedelta(minutes=5):%Y-%m-%dT%H:%M:%SZ}"'
    name, _, more = where.partition(" ")
    file.write_text(
        metadata().replace(f"<md:{name} {more}", f"<md:{name} {ends} {more}")
    )
    provider = provider_of(file)
    time_machine.move_to(NOW, tick=False)
    assert metadata_of(provider).valid_until == NOW + timedelta(minutes=5)
    file.unlink()
    # Within the ten minutes in which an answer is not read again.
    time_machine.move_to(NOW + timedelta(minutes=5), tick=False)
    with pytest.raises(ProviderAway):
        metadata_of(provider)


def test_an_answer_without_an_end_is_used_for_ever(clock):
    answers = ["first"]

    def read() -> str:
        if not answers:
            raise ProviderAway("away")
        return answers.pop()

    kept = KeptAnswer(read)
    assert kept.get() == "first"
    clock.at += 1e7
    assert kept.get() == "first"
