"""The client called inside the test's process, which is much cheaper than a program."""

import sys
from types import SimpleNamespace

import pytest
from django.utils import timezone

from gpuportal.pages import client_files
from reservations.accounts.api_tokens import create_token


@pytest.fixture
def main(tmp_path, monkeypatch):
    """Return the client's main function. Its files lie in the test's folder."""
    monkeypatch.syspath_prepend(str(client_files.PROJECT))
    monkeypatch.setattr(sys, "argv", ["gp"])
    from gpuportal_client import command_line, completion, saved_login

    for module in (completion, saved_login):
        monkeypatch.setattr(module, "KEPT", tmp_path / "kept")
    return command_line.main


@pytest.fixture
def gp(main, live_server, alice, monkeypatch, capfd):
    """Return a function that calls the client as Alice: status, stdout, stderr."""

    def call(*words, user=None):
        if user is not None:
            sign_in(user)
        try:
            status = main([str(word) for word in words])
        except SystemExit as left:
            status = left.code
        out, err = capfd.readouterr()
        return SimpleNamespace(status=status, out=out, err=err)

    def sign_in(user):
        _, token = create_token(
            user=user,
            label="t",
            scopes=["read", "book", "job"],
            days=1,
            now=timezone.now(),
        )
        monkeypatch.setenv("GPUPORTAL_TOKEN", token)

    monkeypatch.setenv("GPUPORTAL_URL", live_server.url)
    sign_in(alice)
    return call
