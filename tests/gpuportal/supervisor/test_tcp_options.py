"""The options of TCP that a web process and `manage.py portal` set on their port."""

import socket
import sys

import pytest

from gpuportal.management.commands.portal import Command
from gpuportal.supervisor import web_process
from gpuportal.supervisor.tcp_options import set_tcp_options


def option_of_accepted(listener, option):
    """Return an option of a connection that a port accepts."""
    with socket.create_connection(listener.getsockname()):
        accepted, _ = listener.accept()
        with accepted:
            return accepted.getsockopt(socket.IPPROTO_TCP, option)


def through_a_web_process(monkeypatch):
    listener = socket.create_server(("127.0.0.1", 0))
    monkeypatch.setattr(sys, "argv", ["web", "--fd", str(listener.fileno())])
    monkeypatch.setattr(web_process.PatientServer, "run", lambda self: None)
    web_process.main()
    return listener


def through_the_command(monkeypatch):
    return Command()._listen("127.0.0.1", 0)


@pytest.mark.parametrize("opened", (through_a_web_process, through_the_command))
def test_a_small_write_does_not_wait_for_an_acknowledgement(monkeypatch, opened):
    with opened(monkeypatch) as listener:
        assert option_of_accepted(listener, socket.TCP_NODELAY) == 1


def test_a_unix_socket_has_no_such_options():
    with socket.socket(socket.AF_UNIX) as listener:
        set_tcp_options(listener)
