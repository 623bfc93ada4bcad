"""A real OpenID provider in a process of its own: django-allauth's.

``python -m tests.gpuportal.oidc.allauth_site FOLDER`` prints its port. ``groups.json``
in the folder has each user's groups claim.
"""

import sys
from pathlib import Path

CLIENT, SECRET = "portal", "a secret: with + and %"
PASSWORD = "long enough, and known"
PEOPLE = ("ada", "bea", "cleo")


def configure(folder: Path) -> None:
    """Set up Django for the provider."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import rsa
    from django.conf import settings

    key = rsa.generate_private_key(65537, 2048).private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    apps = ["auth", "contenttypes", "sessions", "messages"]
    settings.configure(
        SECRET_KEY="only for the tests",
        ALLOWED_HOSTS=["*"],
        ROOT_URLCONF="tests.gpuportal.oidc.allauth_urls",
        INSTALLED_APPS=[
            *(f"django.contrib.{name}" for name in apps),
            *("allauth", "allauth.account", "allauth.idp.oidc"),
        ],
        MIDDLEWARE=[
            "django.contrib.sessions.middleware.SessionMiddleware",
            "django.middleware.csrf.CsrfViewMiddleware",
            "django.contrib.auth.middleware.AuthenticationMiddleware",
            "django.contrib.messages.middleware.MessageMiddleware",
            "allauth.account.middleware.AccountMiddleware",
        ],
        TEMPLATES=[
            {
                "BACKEND": "django.template.backends.django.DjangoTemplates",
                "APP_DIRS": True,
                "OPTIONS": {
                    "context_processors": [
                        "django.template.context_processors.request",
                        "django.contrib.auth.context_processors.auth",
                        "django.contrib.messages.context_processors.messages",
                    ]
                },
            }
        ],
        DATABASES={
            "default": {
                "ENGINE": "django.db.backends.sqlite3",
                "NAME": folder / "provider.sqlite3",
            }
        },
        # Tables without migrations: a second less.
        MIGRATION_MODULES=dict.fromkeys(
            ("auth", "contenttypes", "sessions", "account", "allauth_idp_oidc")
        ),
        PASSWORD_HASHERS=["django.contrib.auth.hashers.MD5PasswordHasher"],
        SESSION_COOKIE_NAME="provider-session",
        CSRF_COOKIE_NAME="provider-csrf",
        USE_TZ=True,
        ACCOUNT_EMAIL_VERIFICATION="none",
        ACCOUNT_RATE_LIMITS=False,
        IDP_OIDC_ADAPTER="tests.gpuportal.oidc.allauth_urls.Adapter",
        IDP_OIDC_PRIVATE_KEY=key.decode(),
        GROUPS_FILE=folder / "groups.json",
    )


def make_rows() -> None:
    """Make the tables, the people and the portal's client."""
    from allauth.account.models import EmailAddress
    from allauth.idp.oidc.models import Client
    from django.contrib.auth.models import User
    from django.core.management import call_command

    call_command("migrate", run_syncdb=True, verbosity=0)
    for name in PEOPLE:
        mail = f"{name}@uni.example"
        user = User.objects.create_user(name, mail, PASSWORD, first_name=name.title())
        EmailAddress.objects.create(user=user, email=mail, primary=True, verified=True)
    client = Client(id=CLIENT, name="GPU Portal", allow_uri_wildcards=True)
    client.set_scopes(["openid", "profile", "email"])
    client.set_secret(SECRET)
    client.set_redirect_uris(
        [
            "http://testserver/login/uni/back/",
            "http://127.0.0.1:*/login/uni/back/",
            "http://localhost:*/login/uni/back/",
        ]
    )
    client.save()


def serve() -> None:
    """Print the port, and answer until the process is ended."""
    from django.core.servers.basehttp import ThreadedWSGIServer, WSGIRequestHandler
    from django.core.wsgi import get_wsgi_application

    class Quiet(WSGIRequestHandler):
        def log_message(self, *_args: object) -> None:
            """Write nothing."""

    server = ThreadedWSGIServer(("127.0.0.1", 0), Quiet)
    server.daemon_threads = True
    server.set_app(get_wsgi_application())
    print(server.server_port, flush=True)
    server.serve_forever()


if __name__ == "__main__":
    configure(Path(sys.argv[1]))
    import django

    django.setup()
    make_rows()
    serve()
