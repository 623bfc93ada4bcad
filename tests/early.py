"""Loaded by ``-p tests.early`` before Django's settings: keeps tests in a sandbox.

pytest-django reads the settings before any conftest runs, and reading them makes
secrets and names files. So the folder of these files is a temporary one here, and
variables of the shell are dropped.
"""

import atexit
import gc
import os
import shutil
import tempfile
from pathlib import Path

# Until the tests are collected (see pytest_collection_finish in tests/conftest.py).
gc.disable()

# Only DATABASE_URL is kept: it chooses which database the suite runs on.
for _name in [
    name
    for name in os.environ
    if name.startswith("GPUPORTAL_")
    or name in ("REDIS_URL", "SECRET_KEY", "ALLOWED_HOSTS", "CSRF_TRUSTED_ORIGINS")
    or name.startswith("ALLOW_")
]:
    del os.environ[_name]

# Short on purpose: Unix sockets below it may have 107 bytes.
VAR = tempfile.mkdtemp(prefix="gpt-")
os.environ["GPUPORTAL_VAR"] = VAR
# WhiteNoise warns of a missing folder, even an unused one.
(Path(VAR) / "static").mkdir()
os.environ["OMP_NUM_THREADS"] = "1"
# Playwright's sync interface keeps an event loop running in the test thread.
os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"] = "true"
_OWNER_PID = os.getpid()


def _remove() -> None:
    # Forked children inherit atexit handlers and must not remove the suite's files.
    if os.getpid() == _OWNER_PID:
        shutil.rmtree(VAR, ignore_errors=True)


atexit.register(_remove)
