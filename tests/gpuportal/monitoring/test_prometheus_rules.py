"""The shipped alert rules, as Prometheus evaluates them."""

import json
import shutil
import subprocess
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
    assert sorted(names) == sorted(RAISED)
    series = series_of("in-order")
    for alert, change in RAISED.items():
        series += series_of(f"of-{alert}", *change)
    firing = [
        {"labels": f'{{alertname="{alert}",instance="of-{alert}"}}', "value": 1}
        for alert in RAISED
    ]
    query = 'sum by (alertname, instance) (ALERTS{alertstate="firing"})'
    test = {"expr": query, "eval_time": "9d", "exp_samples": firing}
    cases = {
        "rule_files": [str(RULES)],
        "evaluation_interval": "4h",
        "tests": [
            {"interval": "4h", "input_series": series, "promql_expr_test": [test]}
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
