"""A small site that is put together oddly: `python -m tests.sites.play NAME DATABASE` says as JSON how it fares."""

from __future__ import annotations

import io
import json
import sys
from typing import Any

import django
from django.conf import settings
from django.core import checks
from django.core.management import call_command

CONTRIB = [f"django.contrib.{name}" for name in ("admin", "auth", "contenttypes", "sessions", "messages")]
OURS = ["rest_framework", "channels", "django_ojs"]
BARE = ["django.contrib.auth", "django.contrib.contenttypes"]
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
TEMPLATES = [
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
]
_LOCMEM = "django.core.mail.backends.locmem.EmailBackend"
MAIL: dict[str, Any] = (
    {"MAILERS": {"default": {"BACKEND": _LOCMEM}}} if django.VERSION >= (6, 1) else {"EMAIL_BACKEND": _LOCMEM}
)
SITES: dict[str, dict[str, Any]] = {
    # No admin, no sessions, no middleware, no templates, no WebSocket
    "bare": {
        "INSTALLED_APPS": [*BARE, *(app for app in OURS if app != "channels")],
        "DEFAULT_AUTO_FIELD": "django.db.models.AutoField",
        "APPEND_SLASH": False,
    },
    # Users of its own kind, who have neither permissions nor is_staff; keys that Django has not heard of
    "members": {
        "INSTALLED_APPS": [*BARE, "django.contrib.sessions", "tests.sites.members", *OURS],
        "MIDDLEWARE": MIDDLEWARE[:2],
        "AUTH_USER_MODEL": "members.Member",
        "DEFAULT_AUTO_FIELD": "tests.sites.members.fields.HouseNumberField",
    },
    # The same in the admin, where their rights are no rows
    "officials": {
        "INSTALLED_APPS": [*CONTRIB, "tests.sites.members", *OURS],
        "MIDDLEWARE": MIDDLEWARE,
        "TEMPLATES": TEMPLATES,
        "AUTH_USER_MODEL": "members.Official",
        "DEFAULT_AUTO_FIELD": "django.db.models.BigAutoField",
        "STATIC_URL": "static/",
        "OJS": {"APPROVAL_MAIL": {"site": "https://example.com"}},
        **MAIL,
    },
    # Nothing in `default`; the admin elsewhere, and all of it below a proxy's prefix
    "elsewhere": {
        "INSTALLED_APPS": [*CONTRIB, *OURS],
        "MIDDLEWARE": MIDDLEWARE,
        "TEMPLATES": TEMPLATES,
        "DATABASE_ROUTERS": ["tests.sites.members.routes.Everything"],
        "FORCE_SCRIPT_NAME": "/shop",
        "DEFAULT_AUTO_FIELD": "django.db.models.BigAutoField",
        "STATIC_URL": "static/",
    },
}


def configure(name: str, path: str) -> str:
    """Set the site up; returns the alias of the database in which everything is."""
    database = {"ENGINE": "django.db.backends.sqlite3", "NAME": path}
    alias = "rest" if name == "elsewhere" else "default"
    settings.configure(
        **{
            "SECRET_KEY": "odd",
            "ALLOWED_HOSTS": ["testserver"],
            "ROOT_URLCONF": "tests.sites.urls",
            "DATABASES": {"default": {}, alias: database},
            "USE_TZ": True,
            **SITES[name],
        }
    )
    django.setup()
    return alias


def main(name: str, path: str) -> dict[str, Any]:
    alias = configure(name, path)
    found: dict[str, Any] = {"checks": sorted(str(message.id) for message in checks.run_checks())}
    call_command("makemigrations", check_changes=True, dry_run=True, verbosity=0)
    call_command("migrate", database=alias, run_syncdb=True, verbosity=0)
    from tests.sites import visits

    found |= {"asgi": visits.asgi(), "http": visits.http(), "python": visits.python()}
    if name == "members":
        found["session"] = visits.session()
    if name == "elsewhere":
        found["admin"] = visits.admin()
    status = io.StringIO()
    call_command("ojs_status", json=True, stdout=status)
    found["status"] = json.loads(status.getvalue())
    if name in ("members", "officials"):
        found["asked"] = visits.asked()
    if name == "officials":
        found |= {"mails": visits.mails(), "admin": visits.admin()}
    call_command("migrate", "django_ojs", "zero", database=alias, verbosity=0)
    return found


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(*sys.argv[1:])))
