"""The checks of a portal and of a node, by given facts."""

import json
from dataclasses import replace

import pytest

from gpuportal.doctor.diagnosis import (
    CheckState,
    exit_status,
    report_json,
    report_lines,
)
from gpuportal.doctor.machine_diagnosis import MachineFacts, machine_report
from gpuportal.doctor.portal_diagnosis import (
    LoginState,
    NodeState,
    OpenidState,
    PortalFacts,
    SettingFault,
    portal_report,
)
from telemetry.protocol.hardware import Isolation

PORTAL = PortalFacts(
    database=True,
    waiting=(),
    broker=True,
    broker_user="portal",
    broker_embedded=False,
    late=(),
    clock_synchronized=True,
    disk_free_bytes=50 * 2**30,
    disk_short=False,
    folder="/var/lib/gpuportal",
    readable=(),
    settings=(),
    production=True,
    mail="",
    openid=OpenidState(fault="", services=1),
    logins=(LoginState(name="Uni", address="https://sso.example.org", fault=""),),
    backup_failure="",
    backup_age_seconds=3600,
    backup_late=False,
    verified_age_seconds=3600,
    bundled=True,
    nodes=(
        NodeState(
            name="atlas",
            silent_seconds=1,
            silent=False,
            maintenance=False,
            driver="570.124.06",
            channel="",
            gate="",
        ),
    ),
)
NODE = MachineFacts(
    gpus=4,
    driver="570.124.06",
    clock_seconds=0.1,
    disk_free_bytes=200 * 2**30,
    folder="/var/lib/gpuportal-node",
    cgroup_v2=True,
    isolation=Isolation.ENFORCED,
    gate=True,
    sshd_port=0,
    sshd=None,
    broker="",
    channel="",
    torch="2.13.0",
    worker="active",
)


def problems(found):
    return {one.check: one for one in found if one.state is CheckState.PROBLEM}


def test_a_portal_in_order_has_no_problem():
    found = list(portal_report(PORTAL))
    assert problems(found) == {}
    assert exit_status(found) == 0
    assert "ok       node atlas: live, driver 570.124.06." in report_lines(found)


def test_a_host_without_gpus_needs_no_driver():
    found = list(machine_report(replace(NODE, gpus=0, driver="", without_gpus=True)))
    assert problems(found) == {}


def test_a_line_names_three_migrations_and_counts_the_others():
    names = tuple(f"telemetry.000{number}_x" for number in range(1, 6))
    found = problems(portal_report(replace(PORTAL, waiting=names)))["migrations"]
    assert found.fact == (
        "not applied: telemetry.0001_x, telemetry.0002_x, telemetry.0003_x and 2 more"
    )


@pytest.mark.parametrize(
    ("change", "check"),
    [
        ({"database": False}, "database"),
        ({"waiting": ("telemetry.0005_x",)}, "migrations"),
        ({"broker": False}, "broker"),
        ({"broker_user": "default"}, "broker users"),
        ({"late": ("reservations.tick",)}, "tasks"),
        ({"clock_synchronized": False}, "clock"),
        ({"disk_short": True}, "disk"),
        ({"readable": ("/x/secret/key",)}, "secrets"),
        (
            {"settings": (SettingFault(number="security.W004", fact="a", fix="b"),)},
            "settings security.W004",
        ),
        ({"mail": "connection refused"}, "mail"),
        ({"sign_up_domains": 1, "sign_up_possible": False}, "sign-up"),
        ({"logins": (replace(PORTAL.logins[0], fault="away"),)}, "login Uni"),
        ({"backup_failure": "the disk is full"}, "backup"),
        ({"backup_age_seconds": None}, "backup"),
        ({"backup_late": True}, "backup"),
        ({"verified_age_seconds": None}, "backup"),
        ({"verified_age_seconds": 9 * 86400}, "backup"),
        ({"bundled": False}, "scripts"),
        (
            {"nodes": (replace(PORTAL.nodes[0], silent_seconds=None),)},
            "node atlas",
        ),
        (
            {"nodes": (replace(PORTAL.nodes[0], silent_seconds=60, silent=True),)},
            "node atlas",
        ),
        ({"nodes": (replace(PORTAL.nodes[0], gate="not loaded"),)}, "node atlas"),
    ],
)
def test_each_problem_of_a_portal_has_its_own_line_and_a_remedy(change, check):
    found = list(portal_report(replace(PORTAL, **change)))
    assert list(problems(found)) == [check]
    assert problems(found)[check].fix
    assert exit_status(found) == 1


def test_the_portal_may_not_know_its_user_on_the_broker():
    found = {one.check: one for one in portal_report(replace(PORTAL, broker_user=""))}
    assert found["broker users"].state is CheckState.NOTE
    assert "as whom" in found["broker users"].fact


def test_a_unix_login_of_two_people_is_named_and_commands_are_those_of_the_site():
    facts = replace(PORTAL, shared_logins={"bob": ("alice", "robert")})
    lines = report_lines(list(portal_report(facts)))
    assert any(
        "unix user bob: alice, robert share it" in line and line.startswith("note")
        for line in lines
    )
    here = replace(PORTAL, waiting=("x",), manage_command="manage.py")
    assert problems(portal_report(here))["migrations"].fix == "manage.py migrate"


def test_a_silent_node_in_maintenance_is_no_problem():
    node = replace(PORTAL.nodes[0], silent_seconds=9000, silent=True, maintenance=True)
    found = list(portal_report(replace(PORTAL, nodes=(node,))))
    assert problems(found) == {}
    assert "note     node atlas: in maintenance." in report_lines(found)


def test_the_reason_is_part_of_the_fact_and_not_the_remedy():
    why = "this node's worker is not root"
    node = replace(NODE, isolation=Isolation.NONE, not_isolated=why)
    found = problems(machine_report(node))["isolation"]
    assert found.fact == f"jobs are not isolated: {why}"
    assert found.fix.startswith("Run the worker as root")


def test_a_node_in_order_has_no_problem():
    found = list(machine_report(NODE))
    assert problems(found) == {}
    facts = {one.fact for one in found}
    assert {"4 GPUs seen, driver 570.124.06", "clock 0.1 s off", "loaded"} <= facts
    assert {"isolation enforced", "torch 2.13.0"} <= facts


@pytest.mark.parametrize(
    ("change", "check"),
    [
        ({"gpus": None, "no_driver": "no NVIDIA driver here"}, "driver"),
        ({"gpus": 0}, "driver"),
        ({"clock_seconds": -3600.0}, "clock"),
        ({"disk_free_bytes": None}, "disk"),
        ({"disk_free_bytes": 2**30}, "disk"),
        ({"cgroup_v2": False}, "cgroups"),
        ({"isolation": Isolation.NONE}, "isolation"),
        ({"sshd_port": 22, "sshd": False}, "ssh"),
        ({"broker": "wrong password"}, "broker"),
        ({"channel": "the order key is not the portal's"}, "channel"),
        ({"torch": ""}, "torch"),
        ({"readable": ("/etc/gpuportal/node.token",)}, "secrets"),
        ({"worker": "failed"}, "worker"),
    ],
)
def test_each_problem_of_a_node_has_its_own_line_and_a_remedy(change, check):
    found = list(machine_report(replace(NODE, **change)))
    assert list(problems(found)) == [check]
    assert problems(found)[check].fix


def test_a_check_is_one_line_and_programs_get_the_same():
    found = list(portal_report(replace(PORTAL, mail="two\nlines")))
    lines = report_lines(found)
    assert len(lines) == len(found)
    assert all("\n" not in line for line in lines)
    rows = json.loads(report_json(found))
    assert [row["check"] for row in rows] == [one.check for one in found]
    assert {row["state"] for row in rows} == {"ok", "problem"}
