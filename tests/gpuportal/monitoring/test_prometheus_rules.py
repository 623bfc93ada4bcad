"""The shipped alert rules, as Prometheus evaluates them."""

import json
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

import pytest
import yaml

RULES = Path(__file__).resolve().parents[3] / "deploy/monitoring/alerts.yml"
IN_ORDER = {
    'up{job="gpuportal"}': 1,
    "gpuportal_frame_age_seconds{}": 30,
    "gpuportal_tasks_late{}": 0,
    'gpuportal_queue_length{queue="control"}': 200,
    'gpuportal_queue_length{queue="refine"}': 900,
    'gpuportal_node_age_seconds{node="a"}': 120,
    "gpuportal_disk_free_bytes{}": 2e9,
    "gpuportal_backup_age_seconds{}": 2 * 86400,
    "gpuportal_backup_verified_age_seconds{}": 8 * 86400,
}
"""The series of a portal in order, each at the limit of its rule."""
RAISED: dict[str, tuple[str, float | None]] = {
    "GpuPortalDown": ("up", 0),
    "GpuPortalNothingLive": ("gpuportal_frame_age", 31),
    "GpuPortalNothingEverLive": ("gpuportal_frame_age", None),
    "GpuPortalTasksLate": ("gpuportal_tasks", 1),
    "GpuPortalQueueGrows": ('gpuportal_queue_length{queue="control"', 201),
    "GpuPortalNodeSilent": ("gpuportal_node_age", 121),
    "GpuPortalDiskNearlyFull": ("gpuportal_disk", 1.9e9),
    "GpuPortalBackupOld": ("gpuportal_backup_age", 2 * 86400 + 1),
    "GpuPortalBackupNotVerified": ("gpuportal_backup_verified", 8 * 86400 + 1),
    "GpuPortalNoBackup": ("gpuportal_backup", None),
    "GpuPortalBackupNeverVerified": ("gpuportal_backup_verified", None),
}
"""By rule: which series are different, and their value. None: they are missing."""
OF_A_RATE = ("GpuPortalServerErrors", "GpuPortalRequestsRefused")


def series_of(
    portal: str, begins: str = "-", value: float | None = None
) -> list[dict[str, str]]:
    """Return nine days of a portal's series, some of them different."""
    numbers = {
        name: value if name.startswith(begins) else number
        for name, number in IN_ORDER.items()
    }
    return [
        {
            "series": name.replace("}", f',instance="{portal}"}}').replace("{,", "{"),
            "values": f"{number:g}x54",
        }
        for name, number in numbers.items()
        if number is not None
    ]


@pytest.mark.once
def test_each_alert_rule_fires_for_its_fault_only(tmp_path):
    names = [
        rule["alert"]
        for group in yaml.safe_load(RULES.read_text())["groups"]
        for rule in group["rules"]
    ]
    assert sorted(names) == sorted([*RAISED, *OF_A_RATE])
    series = series_of("in-order")
    for alert, change in RAISED.items():
        series += series_of(f"of-{alert}", *change)
    fire(tmp_path, series, RAISED, every="4h", at="9d")


@pytest.mark.once
def test_each_rule_of_a_rate_fires_beyond_its_limit_only(tmp_path):
    errors = 'gpuportal_requests_total{status="5xx",instance="%s"}'
    refused = 'gpuportal_requests_refused_total{status="429",instance="%s"}'
    values = {
        errors % "in-order": "0+0.5x40",
        refused % "in-order": "0+60x40",
        errors % "of-GpuPortalServerErrors": "0x33 6x7",
        refused % "of-GpuPortalServerErrors": "0+60x40",
        errors % "of-GpuPortalRequestsRefused": "0+0.5x40",
        refused % "of-GpuPortalRequestsRefused": "0x20 61+61x20",
        # Eleven minutes ago, and for nine minutes.
        errors % "before": "0 9x40",
        refused % "before": "0x32 99+99x8",
    }
    series = [{"series": name, "values": value} for name, value in values.items()]
    fire(tmp_path, series, OF_A_RATE, every="1m", at="40m")


def fire(
    tmp_path: Path,
    series: list[dict[str, str]],
    alerts: Iterable[str],
    *,
    every: str,
    at: str,
) -> None:
    """Let Prometheus evaluate the series. Each alert fires for its own portal only."""
    firing = [
        {"labels": f'{{alertname="{alert}",instance="of-{alert}"}}', "value": 1}
        for alert in alerts
    ]
    query = 'sum by (alertname, instance) (ALERTS{alertstate="firing"})'
    test = {"expr": query, "eval_time": at, "exp_samples": firing}
    cases = {
        "rule_files": [str(RULES)],
        "evaluation_interval": every,
        "tests": [
            {"interval": every, "input_series": series, "promql_expr_test": [test]}
        ],
    }
    file = tmp_path / "cases.yml"
    file.write_text(json.dumps(cases))
    assert shutil.which("promtool"), "tests/programs.py brings promtool"
    done = subprocess.run(
        ["promtool", "test", "rules", str(file)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
