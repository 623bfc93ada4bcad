"""Settings of the web, worker, beat and ingest processes.

Settings that differ between sites come from the environment. Secrets come from a file
of mode 600 under ``var/secret`` or from the environment. Nodes do not read this file:
see ``gpuportal/node_settings.py``.
"""

import hashlib
from ipaddress import ip_network
from pathlib import Path

import environ
from csp.constants import NONE, SELF
from django.core.exceptions import ImproperlyConfigured

from gpuportal.broker import BrokerUrlInvalid, verified_url
from gpuportal.logs.log_format import FORMATS
from placement.planner.launch.workspace_apps import WORKSPACE_APPS as KNOWN_APPS
from placement.protocol.container_images import image_of, image_problem
from placement.workspace.rules import OriginInvalid, read_origin
from reservations.accounts.identities.provider_settings import read_login_settings
from reservations.rules.engine_names import SITE
from telemetry import paths
from telemetry.rules.slurm_cards import read_named_cards
from telemetry.rules.slurm_use import CLUSTER_NAME, READ_SECONDS

env = environ.Env()
BASE_DIR = Path(__file__).resolve().parent.parent
VAR_DIR = paths.var_dir()

DEBUG = env.bool("GPUPORTAL_DEBUG", default=False)
PRODUCTION = env.bool("GPUPORTAL_PRODUCTION", default=False)
# The command that sentences of this installation name.
MANAGE_COMMAND = "gpuportal-manage" if PRODUCTION else "manage.py"

SECRET_KEY = env("SECRET_KEY", default="") or paths.read_secret("secret_key")
if not SECRET_KEY:
    if PRODUCTION:
        raise ImproperlyConfigured("SECRET_KEY is not set and there is no default")
    SECRET_KEY = paths.make_secret("secret_key")

# Earlier keys. They still open what they sealed, and verify what they signed.
SECRET_KEY_FALLBACKS = env.list("SECRET_KEY_FALLBACKS", default=[])

ALLOWED_HOSTS = env.list("ALLOWED_HOSTS", default=["127.0.0.1", "localhost", "[::1]"])
CSRF_TRUSTED_ORIGINS = env.list("CSRF_TRUSTED_ORIGINS", default=[])

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "whitenoise.runserver_nostatic",
    "django.contrib.staticfiles",
    "django.contrib.humanize",
    "channels",
    "simple_history",
    "axes",
    "gpuportal.apps.PortalConfig",
    "telemetry.apps.TelemetryConfig",
    "reservations.apps.ReservationsConfig",
    "placement.apps.PlacementConfig",
]

MIDDLEWARE = [
    # First, because every other middleware may use the address.
    "gpuportal.http.middleware.NullMiddleware",
    "gpuportal.http.middleware.IsolatingHeadersMiddleware",
    "django.middleware.security.SecurityMiddleware",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "csp.middleware.CSPMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "gpuportal.http.middleware.LanguageMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    # Before SignInMiddleware: see its docstring.
    "gpuportal.http.middleware.ProblemMiddleware",
    "gpuportal.http.middleware.SignInMiddleware",
    "gpuportal.http.middleware.TimeZoneMiddleware",
    "gpuportal.http.middleware.UserLanguageMiddleware",
    "gpuportal.http.middleware.SecondFactorMiddleware",
    "gpuportal.pages.client_version.ClientVersionMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "simple_history.middleware.HistoryRequestMiddleware",
    "axes.middleware.AxesMiddleware",
]

# Cookies first, as Django does it, with the portal's sentences translated.
MESSAGE_STORAGE = "gpuportal.message_storage.TranslatedStorage"

ROOT_URLCONF = "gpuportal.urls"
ASGI_APPLICATION = "gpuportal.asgi.application"

TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [BASE_DIR / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
                "gpuportal.pages.context.site",
            ],
        },
    },
]

# --- data -----------------------------------------------------------------------
# IMMEDIATE: a deferred SQLite transaction that turns into a write cannot wait and fails
# at once with "database is locked". FULL: a booking that was confirmed to a student
# survives a power cut.
if env("DATABASE_URL", default=""):
    DATABASES = {"default": env.db("DATABASE_URL")}
else:
    DATABASES = {
        "default": {
            "ENGINE": "django.db.backends.sqlite3",
            "NAME": VAR_DIR / "db.sqlite3",
        }
    }
if DATABASES["default"]["ENGINE"].endswith("sqlite3"):
    DATABASES["default"]["OPTIONS"] = {
        "transaction_mode": "IMMEDIATE",
        "timeout": 20,
        # Deleted data are overwritten, so that an erased name does not stay in the
        # file.
        "init_command": "PRAGMA journal_mode=WAL;PRAGMA synchronous=FULL;"
        "PRAGMA secure_delete=ON;",
    }
elif DATABASES["default"]["ENGINE"].endswith("postgresql"):
    # Seconds. Without it a request waits for minutes for a machine that is off.
    # `?connect_timeout=` of DATABASE_URL comes first.
    DATABASES["default"].setdefault("OPTIONS", {}).setdefault("connect_timeout", 5)
# The source of the move from SQLite to PostgreSQL: gpuportal/backup/row_transfer.py.
if _source := env("GPUPORTAL_BACKUP_SQLITE", default=""):
    DATABASES["backup"] = {"ENGINE": "django.db.backends.sqlite3", "NAME": _source}
# Seconds a thread keeps its connection (see ``gpuportal/http/handler.py``).
DATABASES["default"]["CONN_MAX_AGE"] = env.int("CONN_MAX_AGE", default=60)
DATABASES["default"]["CONN_HEALTH_CHECKS"] = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
AUTH_USER_MODEL = "reservations.User"
# The ways to sign in, and the identity providers (docs/logins.md). Their problems are
# reported by gpuportal/checks.py.
LOGIN_SETTINGS = read_login_settings(
    environ.Env.ENVIRON,
    lambda name: Path(name).read_text(),
    production=PRODUCTION,
)
AUTHENTICATION_BACKENDS = [
    "axes.backends.AxesStandaloneBackend",
    "gpuportal.http.login_limits.SprayBackend",
]
if LOGIN_SETTINGS.passwords:
    AUTHENTICATION_BACKENDS.append("django.contrib.auth.backends.ModelBackend")
if LOGIN_SETTINGS.directory:
    # After the portal's own passwords: see its docstring.
    AUTHENTICATION_BACKENDS.append(
        "gpuportal.directory.directory_backend.DirectoryBackend"
    )
if LOGIN_SETTINGS.providers:
    AUTHENTICATION_BACKENDS.append("gpuportal.oidc.backend.OidcBackend")
if LOGIN_SETTINGS.saml:
    AUTHENTICATION_BACKENDS.append("gpuportal.saml.saml_backend.SamlBackend")
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": f"django.contrib.auth.password_validation.{name}"}
    for name in (
        "UserAttributeSimilarityValidator",
        "MinimumLengthValidator",
        "CommonPasswordValidator",
        "NumericPasswordValidator",
    )
]
# A mailed link to a new password lasts so many seconds.
PASSWORD_RESET_TIMEOUT = 3600
# By user name AND address together, so that a third party cannot lock a user out.
AXES_FAILURE_LIMIT = 10
AXES_COOLOFF_TIME = 0.25
AXES_LOCKOUT_PARAMETERS = [["username", "ip_address"]]
AXES_VERBOSE = False
CSRF_FAILURE_VIEW = "gpuportal.pages.views.form_expired"
LOGIN_URL = "login"
LOGIN_REDIRECT_URL = "board"
LOGOUT_REDIRECT_URL = "login"

# --- broker and channel layer ------------------------------------------------
BROKER_CA_FILE = env("GPUPORTAL_BROKER_CA_FILE", default="")
# Where deploy/broker-user makes the broker's users of machines that join.
BROKER_USER_SOCKET = env(
    "GPUPORTAL_BROKER_USER_SOCKET", default="/run/gpuportal/broker-user.sock"
)
try:
    REDIS_URL = verified_url(
        env("REDIS_URL", default="") or paths.embedded_redis_url(),
        ca_file=BROKER_CA_FILE,
    )
except BrokerUrlInvalid as error:
    raise ImproperlyConfigured(f"REDIS_URL {error}") from error
CELERY_BROKER_URL = paths.celery_url(REDIS_URL)
CELERY_TASK_IGNORE_RESULT = True
CELERY_TASK_SERIALIZER = "json"
CELERY_ACCEPT_CONTENT = ["json"]
CELERY_TASK_DEFAULT_QUEUE = "control"
CELERY_TASK_CREATE_MISSING_QUEUES = True
# Symbolic estimates take seconds, so they have a separate worker and ticks never wait.
CELERY_TASK_ROUTES = {"placement.tasks.refine": {"queue": "refine"}}
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
CELERY_TIMEZONE = "UTC"
CELERY_WORKER_HIJACK_ROOT_LOGGER = False
CELERY_WORKER_CONSUMER = "gpuportal.worker_consumer:SteadyConsumer"
CELERY_BEAT_SCHEDULER = "gpuportal.beat:SteadyScheduler"
CELERY_BEAT_SCHEDULE = {
    "reservations": {
        "task": "reservations.tasks.tick",
        "schedule": 1.0,
        "options": {"expires": 5},
    },
    # The waitlist: two short queries find whether there is anything to do.
    "waitlist": {
        "task": "reservations.tasks.place",
        "schedule": 1.0,
        "options": {"expires": 5},
    },
    # Mails and webhooks. The database has the due ones.
    "delivery": {
        "task": "reservations.tasks.deliver",
        "schedule": 5.0,
        "options": {"expires": 5},
    },
    # The database has the due months. Most runs find none.
    "reports": {
        "task": "reservations.tasks.roll_months",
        "schedule": 60.0,
        "options": {"expires": 50},
    },
    # For a ledger that is too long to read it all; otherwise one short query.
    "usage": {
        "task": "reservations.tasks.store_usage",
        "schedule": 60.0,
        "options": {"expires": 50},
    },
    "placement": {
        "task": "placement.tasks.tick",
        "schedule": 1.0,
        "options": {"expires": 5},
    },
    "jobs": {
        "task": "placement.tasks.follow",
        "schedule": 2.0,
        "options": {"expires": 5},
    },
    # Lists the folder of the logs, so it does not run with "jobs".
    "logs": {
        "task": "placement.tasks.limit_logs",
        "schedule": 60.0,
        "options": {"expires": 50},
    },
    # The database has the due Jobs. See placement's policy.
    "moves": {
        "task": "placement.tasks.look_again",
        "schedule": 5.0,
        "options": {"expires": 5},
    },
    # Ended sessions, old logins.
    "logins": {
        "task": "gpuportal.tasks.clear_logins",
        "schedule": 3600.0,
        "options": {"expires": 3000},
    },
    "telemetry": {
        "task": "telemetry.tasks.tick",
        "schedule": 60.0,
        "options": {"expires": 50},
    },
}
# socket_timeout None: otherwise an idle websocket is closed after five seconds
# (channels_redis#422). max_connections: the default of 100 refuses a rush.
CHANNEL_LAYERS = {
    "default": {
        "BACKEND": "channels_redis.core.RedisChannelLayer",
        "CONFIG": {
            "hosts": [
                {
                    "address": REDIS_URL,
                    "max_connections": 5000,
                    "socket_timeout": None,
                }
            ],
            "capacity": 500,
            "prefix": "layer",
        },
    }
}

# ClusterName of the Slurm cluster whose nodes the board shows (docs/slurm.md). Empty:
# none.
SLURM_CLUSTER = env("SLURM_CLUSTER", default="").strip()
# Its slurm.conf and the folder of its commands. Empty: Slurm's default, and PATH.
SLURM_CONF = env("SLURM_CONF", default="")
SLURM_FOLDER = env("SLURM_FOLDER", default="")
# Whether what people used in Slurm counts in Fair Tree (docs/slurm.md#fair-tree).
SLURM_IMPORT = env.bool("SLURM_IMPORT", default=False)
# Whether its nodes can be booked in the calendar (docs/slurm.md#book).
SLURM_BOOK = env.bool("SLURM_BOOK", default=False)
# This portal's id in the names of its reservations in Slurm, because several portals
# may share a cluster. Empty: it follows from SECRET_KEY.
SLURM_SITE = (
    env("SLURM_SITE", default="").strip()
    or hashlib.sha256(f"slurm-site:{SECRET_KEY}".encode()).hexdigest()[:6]
)
if not SITE.fullmatch(SLURM_SITE):
    raise ImproperlyConfigured("SLURM_SITE: 4 to 12 lowercase letters and digits")
# The node, enrolled in the portal, whose worker submits jobs to Slurm
# (docs/slurm.md#run). Empty: students submit their jobs themselves.
SLURM_AGENT = env("SLURM_AGENT", default="").strip()
# The cards of types whose name does not say it, for example
# a100=NVIDIA A100-SXM4-80GB,h100=NVIDIA H100 PCIe (docs/slurm.md#cards).
try:
    SLURM_CARDS = read_named_cards(env("SLURM_CARDS", default=""))
except ValueError as _error:
    raise ImproperlyConfigured(
        f"SLURM_CARDS: {_error} is not TYPE=CARD with a card of "
        "`python -m placement.planner cards`"
    ) from None
if (SLURM_IMPORT or SLURM_BOOK) and not SLURM_CLUSTER:
    raise ImproperlyConfigured("SLURM_IMPORT and SLURM_BOOK need SLURM_CLUSTER")
if SLURM_AGENT and not SLURM_BOOK:
    raise ImproperlyConfigured("SLURM_AGENT needs SLURM_BOOK=yes")
if SLURM_CLUSTER and not CLUSTER_NAME.fullmatch(SLURM_CLUSTER):
    raise ImproperlyConfigured(
        "SLURM_CLUSTER: at most 40 letters, digits, - and _, as in slurm.conf"
    )
if SLURM_CLUSTER:
    CELERY_BEAT_SCHEDULE["slurm"] = {
        "task": "telemetry.tasks.read_slurm",
        "schedule": READ_SECONDS,
        "options": {"expires": 10},
    }
    # Without SLURM_BOOK it does nothing, unless Slurm still holds something.
    CELERY_BEAT_SCHEDULE["slurm-book"] = {
        "task": "reservations.tasks.reconcile_engine",
        "schedule": READ_SECONDS,
        "options": {"expires": 10},
    }
if SLURM_IMPORT:
    CELERY_BEAT_SCHEDULE["slurm-import"] = {
        "task": "reservations.tasks.import_slurm",
        "schedule": 3600.0,
        "options": {"expires": 1800},
    }

# --- pages ------------------------------------------------------------------------
# Each language by its own name. docs/translation.md explains how to add one.
LANGUAGES = [("en", "English"), ("de", "Deutsch")]
# For readers who chose no language and whose browser requests none of them, and for
# mails.
LANGUAGE_CODE = env("GPUPORTAL_LANGUAGE", default="en")
if LANGUAGE_CODE not in dict(LANGUAGES):
    raise ImproperlyConfigured(
        f"GPUPORTAL_LANGUAGE: choose one of {', '.join(dict(LANGUAGES))}"
    )
LANGUAGE_COOKIE_AGE = 365 * 24 * 3600
LANGUAGE_COOKIE_HTTPONLY = True
LANGUAGE_COOKIE_SAMESITE = "Lax"
LOCALE_PATHS = [BASE_DIR / "gpuportal" / "locale"]
FORMAT_MODULE_PATH = ["gpuportal.formats"]
TIME_ZONE = env("GPUPORTAL_TIME_ZONE", default="UTC")
USE_I18N = True
USE_TZ = True
STATIC_URL = "static/"
STATICFILES_DIRS = [BASE_DIR / "static"]
STATIC_ROOT = VAR_DIR / "static"
STATICFILES_FINDERS = [
    "django.contrib.staticfiles.finders.FileSystemFinder",
    "django.contrib.staticfiles.finders.AppDirectoriesFinder",
    "gpuportal.static_files.NpmFinder",
    "gpuportal.static_files.BundleFinder",
    "gpuportal.static_files.ClientFinder",
]
STORAGES = {
    "default": {"BACKEND": "django.core.files.storage.FileSystemStorage"},
    "staticfiles": {
        "BACKEND": (
            "gpuportal.static_files.PortalStaticFilesStorage"
            if PRODUCTION
            else "django.contrib.staticfiles.storage.StaticFilesStorage"
        )
    },
}
# A checkout's files change while it runs. A length that was read at the start would
# then be wrong, and the browser would discard the file.
WHITENOISE_USE_FINDERS = WHITENOISE_AUTOREFRESH = not PRODUCTION
WHITENOISE_ALLOW_ALL_ORIGINS = False
# Browsers keep for ever what has a hash in its name: esbuild's or collectstatic's.
WHITENOISE_IMMUTABLE_FILE_TEST = (
    r"/bundle/[\w-]+-[A-Z0-9]{8}\.js(\.map)?$|\.[0-9a-f]{12}\.\w+$"
)
MEDIA_ROOT = VAR_DIR / "media"
NPM_STATIC = {
    "vendor/event-calendar.min.js": "@event-calendar/build/dist/event-calendar.min.js",
    "vendor/event-calendar.min.js.map": (
        "@event-calendar/build/dist/event-calendar.min.js.map"
    ),
    "vendor/event-calendar.min.css": (
        "@event-calendar/build/dist/event-calendar.min.css"
    ),
    "vendor/uPlot.iife.min.js": "uplot/dist/uPlot.iife.min.js",
    "vendor/uPlot.min.css": "uplot/dist/uPlot.min.css",
    "vendor/xterm.js": "@xterm/xterm/lib/xterm.js",
    "vendor/xterm.js.map": "@xterm/xterm/lib/xterm.js.map",
    "vendor/xterm.css": "@xterm/xterm/css/xterm.css",
    "vendor/addon-fit.js": "@xterm/addon-fit/lib/addon-fit.js",
    "vendor/addon-fit.js.map": "@xterm/addon-fit/lib/addon-fit.js.map",
    "vendor/inter-latin.woff2": (
        "@fontsource-variable/inter/files/inter-latin-wght-normal.woff2"
    ),
    "vendor/inter-latin-ext.woff2": (
        "@fontsource-variable/inter/files/inter-latin-ext-wght-normal.woff2"
    ),
}
CONTENT_SECURITY_POLICY = {
    "DIRECTIVES": {
        "default-src": [SELF],
        "script-src": [SELF],
        "style-src": [SELF],
        "img-src": [SELF, "data:"],
        "connect-src": [SELF],
        "object-src": [NONE],
        "base-uri": [NONE],
        "frame-ancestors": [NONE],
        "form-action": [SELF],
    }
}
SECURE_CONTENT_TYPE_NOSNIFF = True
SECURE_REFERRER_POLICY = "same-origin"
X_FRAME_OPTIONS = "DENY"
SESSION_COOKIE_HTTPONLY = True
SESSION_COOKIE_SAMESITE = "Lax"
if PRODUCTION:
    SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = LANGUAGE_COOKIE_SECURE = True
    # No other host can set cookies with these names, so a workspace below the portal's
    # domain cannot replace a session or a CSRF token.
    SESSION_COOKIE_NAME = "__Host-sessionid"
    CSRF_COOKIE_NAME = "__Host-csrftoken"
    SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https")
    # The proxy ends TLS and reports it. Health checks and metrics come from this
    # machine.
    SECURE_SSL_REDIRECT = env.bool("SECURE_SSL_REDIRECT", default=True)
    SECURE_REDIRECT_EXEMPT = ["^healthz$", "^readyz$", "^metrics$"]
    # A year. Other hosts of the institute's domain are not the portal's to decide for,
    # so neither sub-domains nor the browsers' preload list.
    SECURE_HSTS_SECONDS = env.int("HSTS_SECONDS", default=365 * 24 * 3600)
    SILENCED_SYSTEM_CHECKS = ["security.W005", "security.W021"]
DATA_UPLOAD_MAX_MEMORY_SIZE = 4 * 2**20
# --- notices by mail and webhook (docs/operations.md) ----------------------------
EMAIL_BACKEND = "django.core.mail.backends.smtp.EmailBackend"
MAIL_CONFIGURED = bool(env("EMAIL_URL", default=""))
if MAIL_CONFIGURED:
    vars().update(env.email_url("EMAIL_URL"))
DEFAULT_FROM_EMAIL = env("MAIL_FROM", default="GPU Portal <gpuportal@localhost>")
# The address that people type. Links in mails begin with it.
PORTAL_URL = env("PORTAL_URL", default="").rstrip("/")
# The portal as an OpenID provider for other services (docs/logins.md#services). Its key
# is a secret of the site: gpuportal/openid_provider/signing_key.py.
OPENID_PROVIDER = env.bool("OPENID_PROVIDER", default=False)
# Whether the site vouches for the mail addresses that it gives to services.
OPENID_EMAIL_VERIFIED = env.bool("OPENID_EMAIL_VERIFIED", default=False)
# Contact for users, as pages show it: a mail address, or any short text.
PORTAL_CONTACT = env("PORTAL_CONTACT", default="").strip()
# Networks inside the institute that webhooks may call. Public addresses always may be
# called.
WEBHOOK_ALLOWED_NETWORKS = env.list("WEBHOOK_ALLOWED_NETWORKS", default=[])
for _network in WEBHOOK_ALLOWED_NETWORKS:
    try:
        ip_network(_network)
    except ValueError as error:
        raise ImproperlyConfigured(f"WEBHOOK_ALLOWED_NETWORKS: {error}") from error
# Plain http to this machine, for development only.
WEBHOOK_LOOPBACK_HTTP = env.bool("WEBHOOK_LOOPBACK_HTTP", default=DEBUG)
if WEBHOOK_LOOPBACK_HTTP and PRODUCTION:
    raise ImproperlyConfigured("WEBHOOK_LOOPBACK_HTTP is not for production")

# --- the portal's own settings ----------------------------------------------------
# Simulated GPUs are refused in production unless the operator allows them.
ALLOW_SIMULATED_GPUS = env.bool("ALLOW_SIMULATED_GPUS", default=not PRODUCTION)
# Whether students' scripts may run if jobs have no separate Unix users.
ALLOW_UNISOLATED_SCRIPTS = env.bool("ALLOW_UNISOLATED_SCRIPTS", default=False)
# Whether people without a Unix user get an id for their jobs (make run as root).
OWN_IDS = env.bool("GPUPORTAL_OWN_IDS", default=False)
if OWN_IDS and PRODUCTION:
    raise ImproperlyConfigured("GPUPORTAL_OWN_IDS is for make run, not for production")
# Where workspaces such as JupyterLab are, each at a separate host below this name:
# https://*.ws.gpu.lab. Empty: there are none.
WORKSPACE_ORIGIN = env("WORKSPACE_ORIGIN", default="").rstrip("/")
# Their programs, by name (placement/planner/launch/workspace_apps.py).
WORKSPACE_APPS = env.list("WORKSPACE_APPS", default=list(KNOWN_APPS))
# Images that they can run in: podman:REGISTRY/NAME:TAG, or a .sif file on the nodes.
WORKSPACE_IMAGES = env.list("WORKSPACE_IMAGES", default=[])
try:
    _origin = read_origin(WORKSPACE_ORIGIN)
except OriginInvalid as error:
    raise ImproperlyConfigured(f"WORKSPACE_ORIGIN {error}") from error
for _host in ALLOWED_HOSTS:
    if _origin is not None and _origin.owns(_host.lstrip("*.")):
        raise ImproperlyConfigured(
            f"WORKSPACE_ORIGIN: {_host} of ALLOWED_HOSTS is below its domain"
        )
for _trusted in CSRF_TRUSTED_ORIGINS:
    _domain = _trusted.partition("://")[2].lower()
    if _origin is not None and (
        _origin.owns(_domain.lstrip("*."))
        or (_domain.startswith("*") and f".{_origin.domain}".endswith(_domain[1:]))
    ):
        raise ImproperlyConfigured(
            f"WORKSPACE_ORIGIN: CSRF_TRUSTED_ORIGINS would trust it ({_trusted})"
        )
for _name in WORKSPACE_APPS:
    if _name not in KNOWN_APPS:
        raise ImproperlyConfigured(
            f"WORKSPACE_APPS: choose among {', '.join(KNOWN_APPS)}"
        )
for _name in WORKSPACE_IMAGES:
    _image = image_of(_name)
    if _image is None or image_problem(_image):
        raise ImproperlyConfigured(
            "WORKSPACE_IMAGES: write podman:REGISTRY/NAME:TAG, or the absolute path of "
            f"a .sif file, not {_name}"
        )
# Requests a minute of one person that change the calendar.
BOOK_RATE_PER_MINUTE = env.int("BOOK_RATE_PER_MINUTE", default=60)
# Plans in a process beside each web process, so that no page waits for them.
PLANNER_PROCESS = env.bool("PLANNER_PROCESS", default=True)
# Requests a minute of one person to served models.
SERVE_RATE_PER_MINUTE = env.int("SERVE_RATE_PER_MINUTE", default=30_000)
# Of one person to served language models: tokens a minute, and calls at once.
SERVE_TOKENS_PER_MINUTE = env.int("SERVE_TOKENS_PER_MINUTE", default=200_000)
SERVE_TEXT_CALLS = env.int("SERVE_TEXT_CALLS", default=16)

# For a person, or one JSON object a line for a log store.
LOG_FORMAT = env("LOG_FORMAT", default="line")
if LOG_FORMAT not in FORMATS:
    raise ImproperlyConfigured(f"LOG_FORMAT must be one of {', '.join(FORMATS)}")
LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {
        "chosen": {"()": "gpuportal.logs.log_format.formatter", "form": LOG_FORMAT}
    },
    "filters": {
        "repeats": {"()": "gpuportal.logs.log_bounds.RepeatFilter"},
        "request": {"()": "gpuportal.logs.log_format.RequestIdFilter"},
    },
    "handlers": {
        "console": {
            "class": "logging.StreamHandler",
            "formatter": "chosen",
            "filters": ["repeats", "request"],
        }
    },
    "root": {"handlers": ["console"], "level": env("LOG_LEVEL", default="WARNING")},
    # A visitor's 404 or a refused booking is not a warning for the operator.
    "loggers": {
        "django.request": {"level": "ERROR"},
        # The server's own handlers have no bounds, and would log a traceback for each
        # socket that the database refuses.
        "uvicorn": {
            "handlers": ["console"],
            "propagate": False,
            "level": env("LOG_LEVEL", default="WARNING"),
        },
        # The proxy logs requests. Without this entry the line above would undo the
        # server's --no-access-log.
        "uvicorn.access": {"handlers": [], "propagate": False},
    },
}
