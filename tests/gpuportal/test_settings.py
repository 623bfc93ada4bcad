"""The settings themselves, the headers they make, and the checks on them."""

import os
import subprocess
import sys

import pytest
from django.conf import settings as site
from django.core.checks import Error, run_checks
from django.test import override_settings

from gpuportal import checks
from telemetry import paths
from tests.factories import make_node


def ids(found: list) -> set[str]:
    return {message.id for message in found}


@pytest.mark.django_db
def test_every_page_has_a_policy_without_unsafe_words(client):
    policy = client.get("/login/")["Content-Security-Policy"]
    assert "unsafe" not in policy
    for rule in (
        "default-src 'self'",
        "script-src 'self'",
        "object-src 'none'",
        "base-uri 'none'",
        "frame-ancestors 'none'",
    ):
        assert rule in policy


@pytest.mark.django_db
def test_every_page_has_the_other_safe_headers(client):
    answer = client.get("/login/")
    assert answer["X-Content-Type-Options"] == "nosniff"
    assert answer["X-Frame-Options"] == "DENY"
    assert answer["Referrer-Policy"] == "same-origin"


def test_sqlite_writers_wait_for_each_other_and_survive_a_power_cut():
    text = (site.BASE_DIR / "gpuportal" / "settings.py").read_text()
    assert '"transaction_mode": "IMMEDIATE"' in text
    assert "synchronous=FULL" in text
    assert "journal_mode=WAL" in text


def test_the_problem_middleware_stands_before_the_first_look_at_the_visitor():
    order = site.MIDDLEWARE.index
    assert (
        order("django.contrib.auth.middleware.AuthenticationMiddleware")
        < order("gpuportal.http.middleware.ProblemMiddleware")
        < order("gpuportal.http.middleware.SignInMiddleware")
    )


def test_a_celery_address_of_a_socket_is_spelt_as_kombu_wants_it():
    assert paths.celery_url("unix:///run/v.sock?db=2") == (
        "redis+socket:///run/v.sock?virtual_host=2"
    )
    assert paths.celery_url("redis://broker:6379/1") == "redis://broker:6379/1"


def test_a_secret_is_made_once_and_only_its_owner_reads_it():
    first = paths.make_secret("test_secret")
    assert len(first) > 40
    assert paths.make_secret("test_secret", "another") == first
    assert paths.secret_file("test_secret").stat().st_mode & 0o777 == 0o600
    assert paths.read_secret("no_such_secret") == ""


def test_a_long_checkout_still_has_a_short_socket(monkeypatch, tmp_path):
    monkeypatch.setenv("GPUPORTAL_VAR", str(tmp_path / ("x" * 120)))
    far = paths.embedded_socket()
    assert len(str(far)) <= paths.UNIX_SOCKET_PATH_MAX
    monkeypatch.setenv("GPUPORTAL_VAR", str(tmp_path / ("y" * 120)))
    assert paths.embedded_socket() != far


# --- checks ---------------------------------------------------------------------


def test_a_development_site_passes_its_own_checks():
    assert [m for m in run_checks() if isinstance(m, Error)] == []


@override_settings(
    PRODUCTION=True,
    DEBUG=True,
    ALLOWED_HOSTS=["*"],
    ALLOW_UNISOLATED_SCRIPTS=True,
)
def test_production_refuses_a_laptops_settings():
    assert ids(checks.production_is_meant()) == {
        "gpuportal.E001",
        "gpuportal.E002",
        "gpuportal.E003",
        "gpuportal.W001",
    }


@override_settings(
    PRODUCTION=True, ALLOWED_HOSTS=["gpu.lab"], REDIS_URL="rediss://broker:6379/0"
)
def test_production_accepts_settings_that_are_meant():
    assert checks.production_is_meant() == []


@pytest.mark.django_db
def test_production_refuses_simulated_nodes_unless_they_are_allowed(settings):
    make_node("sim-a")
    assert checks.nodes_are_fit_for_production(["default"]) == []
    settings.PRODUCTION = True
    settings.ALLOW_SIMULATED_GPUS = False
    found = checks.nodes_are_fit_for_production(["default"])
    assert ids(found) == {"gpuportal.E004"}
    assert "sim-a" in found[0].msg
    settings.ALLOW_SIMULATED_GPUS = True
    assert checks.nodes_are_fit_for_production(["default"]) == []


@pytest.mark.django_db
def test_production_refuses_a_node_that_keeps_nobody_apart(settings):
    settings.PRODUCTION = True
    make_node("atlas", simulated=False, isolation="watched")
    assert checks.nodes_are_fit_for_production(["default"]) == []
    # It was seen, and a restart was faster than its roster.
    borea = make_node("borea", simulated=False, isolation="none", boot_id="")
    assert checks.nodes_are_fit_for_production(["default"]) == []
    type(borea).objects.filter(pk=borea.pk).update(boot_id="0b5c")
    found = checks.nodes_are_fit_for_production(["default"])
    assert ids(found) == {"gpuportal.E005"}
    assert "borea" in found[0].msg
    assert "atlas" not in found[0].msg


def test_djangos_own_deploy_checks_find_nothing_in_production(tmp_path):
    """HSTS and the redirect to TLS are among them. Run in a separate process."""
    environ = {
        "PATH": os.defpath,
        "GPUPORTAL_VAR": str(tmp_path),
        "GPUPORTAL_PRODUCTION": "1",
        "SECRET_KEY": "".join(chr(33 + number % 90) for number in range(80)),
        "ALLOWED_HOSTS": "gpus.example.org",
        "DJANGO_SETTINGS_MODULE": "gpuportal.settings",
    }
    (tmp_path / "static").mkdir()
    script = (
        "import django; django.setup()\n"
        "from django.core.checks import run_checks, Tags\n"
        "found = run_checks(tags=[Tags.security], include_deployment_checks=True)\n"
        "print([m.id for m in found if m.id.startswith('security.') "
        "and not m.is_silenced()])\n"
        "from django.conf import settings\n"
        "print(settings.SECURE_HSTS_SECONDS, settings.SECURE_SSL_REDIRECT)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=site.BASE_DIR,
        env=environ,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines()[-2:] == ["[]", "31536000 True"], done.stderr


@override_settings(
    SECURE_SSL_REDIRECT=True,
    SECURE_HSTS_SECONDS=60,
    SECURE_REDIRECT_EXEMPT=["^healthz$"],
    SECURE_PROXY_SSL_HEADER=("HTTP_X_FORWARDED_PROTO", "https"),
)
@pytest.mark.django_db
def test_plain_http_is_redirected_and_tls_is_remembered(client):
    plain = client.get("/login/")
    assert (plain.status_code, plain["Location"]) == (301, "https://testserver/login/")
    safe = client.get("/login/", headers={"x-forwarded-proto": "https"})
    assert safe.status_code == 200
    assert safe["Strict-Transport-Security"] == "max-age=60"
    assert client.get("/healthz").status_code != 301


def test_the_servers_own_request_log_is_off_and_its_errors_are_not():
    """The portal's logging must not undo the server's --no-access-log."""
    look = (
        "import logging, uvicorn.config as c;"
        "c.Config('gpuportal.asgi:application', access_log=False,"
        " log_level='warning').load();"
        "a, e = map(logging.getLogger, ('uvicorn.access', 'uvicorn.error'));"
        "print(a.hasHandlers(), e.hasHandlers(),"
        " e.isEnabledFor(20), e.isEnabledFor(30))"
    )
    done = subprocess.run(
        [sys.executable, "-c", look],
        cwd=site.BASE_DIR,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.split() == ["False", "True", "False", "True"], done.stderr


def test_workspaces_never_share_a_name_or_a_cookie_with_the_portal(tmp_path):
    """A workspace below the portal's own names would be trusted by it."""
    mine = {
        "ALLOWED_HOSTS": "gpu.lab,127.0.0.1",
        "WORKSPACE_ORIGIN": "https://*.ws.lab",
    }
    cases = [
        mine,
        mine | {"WORKSPACE_ORIGIN": "http://*.ws.lab"},
        mine | {"ALLOWED_HOSTS": "portal.ws.lab"},
        mine | {"CSRF_TRUSTED_ORIGINS": "https://*.lab"},
        mine | {"CSRF_TRUSTED_ORIGINS": "https://*.ws.lab"},
        mine | {"CSRF_TRUSTED_ORIGINS": "https://gpu.lab"},
        mine | {"WORKSPACE_APPS": "emacs"},
    ]
    code = f"""
import os, runpy
known = dict(os.environ)
for case in {cases!r}:
    os.environ.clear()
    os.environ.update(known | case)
    try:
        found = runpy.run_module("gpuportal.settings")
        print(found["SESSION_COOKIE_NAME"], found["CSRF_COOKIE_NAME"])
    except Exception as error:
        print(type(error).__name__, error)
"""
    env = {"PATH": os.environ["PATH"], "GPUPORTAL_VAR": str(tmp_path)}
    env |= {"GPUPORTAL_PRODUCTION": "1", "SECRET_KEY": "x" * 50}
    env |= {"REDIS_URL": "rediss://broker:6379/0"}
    words = [sys.executable, "-c", code]
    done = subprocess.run(
        words, env=env, cwd=site.BASE_DIR, capture_output=True, text=True, check=True
    )
    told = done.stdout.splitlines()
    assert told[0] == told[5] == "__Host-sessionid __Host-csrftoken", done.stdout
    for number, words in (
        (1, "WORKSPACE_ORIGIN must begin with https://"),
        (2, "WORKSPACE_ORIGIN: portal.ws.lab of ALLOWED_HOSTS is below its domain"),
        (3, "WORKSPACE_ORIGIN: CSRF_TRUSTED_ORIGINS would trust it (https://*.lab)"),
        (4, "WORKSPACE_ORIGIN: CSRF_TRUSTED_ORIGINS would trust it (https://*.ws.lab)"),
        (6, "WORKSPACE_APPS: choose among jupyter-lab"),
    ):
        assert told[number].startswith(f"ImproperlyConfigured {words}"), told[number]


def test_slurm_needs_a_clusters_name_and_no_one_waits_long_for_postgresql(tmp_path):
    code = """
import os, runpy
for name in ("", "lab", "la b", "x" * 41):
    os.environ["SLURM_CLUSTER"] = name
    try:
        print("slurm" in runpy.run_module("gpuportal.settings")["CELERY_BEAT_SCHEDULE"])
    except Exception as error:
        print(type(error).__name__, error)
os.environ["SLURM_CLUSTER"] = ""
os.environ["SLURM_CARDS"] = "a100=NVIDIA H200,b=Matrox"
try:
    runpy.run_module("gpuportal.settings")
except Exception as error:
    print(type(error).__name__, error)
os.environ["SLURM_CARDS"] = ""
for given in ("", "?connect_timeout=9"):
    os.environ["DATABASE_URL"] = "postgres://ada:x@db.lab/portal" + given
    found = runpy.run_module("gpuportal.settings")["DATABASES"]["default"]
    print(found["OPTIONS"]["connect_timeout"])
"""
    env = {"PATH": os.environ["PATH"], "GPUPORTAL_VAR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=env,
        cwd=site.BASE_DIR,
        capture_output=True,
        text=True,
        check=True,
    )
    told = done.stdout.splitlines()
    assert told[:2] == ["False", "True"]
    assert told[2] == told[3]
    assert told[2].startswith("ImproperlyConfigured SLURM_CLUSTER: at most 40")
    assert told[4].startswith("ImproperlyConfigured SLURM_CARDS: b=Matrox is not")
    assert told[5:] == ["5", "9"]
