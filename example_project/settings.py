"""The example site. Every choice that depends on the machine comes from the environment:

DATABASE_URL              postgres://…, mysql://… or sqlite:///…; default: SQLite, `db.sqlite3` in the data directory
REDIS_URL                 a Redis for the channel layer; default: in memory, for a single process
DJANGO_DEBUG              `0` for production; default on
DJANGO_SECRET_KEY         needed when DEBUG is off
DJANGO_ALLOWED_HOSTS      comma-separated; needed when DEBUG is off
DJANGO_CSRF_TRUSTED_ORIGINS  comma-separated origins with scheme, behind a proxy that ends TLS
DJANGO_HTTPS              `0` where production is served without TLS (a test on one machine); default on without DEBUG:
                          redirects to https, secure cookies, Strict-Transport-Security
DJANGO_BEHIND_PROXY       `1` where a proxy ends TLS and sets X-Forwarded-Proto itself, whatever a client sent
DJANGO_HSTS_SECONDS       how long browsers insist on https; default 3600, raise it when everything works
DJANGO_DATA_DIR           where mail, reports, logs and the SQLite file go; default: `demo-data` in the checkout
DJANGO_LOG_LEVEL          default INFO
DJANGO_LOG_FILE           log to this file, which never outgrows 2 MB, instead of stderr
"""

from __future__ import annotations

import importlib.util
import os
from typing import Any
from urllib.parse import quote

import django
from django.core.exceptions import ImproperlyConfigured

from django_ojs import grpc
from django_ojs.database import POOL_OPTIONS, parse_url
from example_project.paths import BASE_DIR, DATA_DIR


def _list(name: str) -> list[str]:
    return [item for item in os.environ.get(name, "").replace(" ", "").split(",") if item]


def _on(name: str, default: bool) -> bool:
    return os.environ.get(name, str(int(default))).strip().lower() not in ("", "0", "false", "no", "off")


def _installed(*modules: str) -> list[str]:
    return [module for module in modules if importlib.util.find_spec(module.partition(".")[0])]


DEBUG = _on("DJANGO_DEBUG", True)
SECRET_KEY = os.environ.get("DJANGO_SECRET_KEY", "only-for-the-demo-on-this-machine" if DEBUG else "")
if not SECRET_KEY:
    raise ImproperlyConfigured("DJANGO_DEBUG is off: set DJANGO_SECRET_KEY to a long random text.")
ALLOWED_HOSTS = _list("DJANGO_ALLOWED_HOSTS")
if not (ALLOWED_HOSTS or DEBUG):
    raise ImproperlyConfigured("DJANGO_DEBUG is off: set DJANGO_ALLOWED_HOSTS to the names of this site.")
CSRF_TRUSTED_ORIGINS = _list("DJANGO_CSRF_TRUSTED_ORIGINS")

# What `check --deploy` asks for. Load balancers and monitoring look at the probes from inside, without TLS.
HTTPS = _on("DJANGO_HTTPS", not DEBUG)
SECURE_SSL_REDIRECT = SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = HTTPS
SECURE_REDIRECT_EXEMPT = [r"^(healthz?|readyz?|metrics)$"]
SECURE_HSTS_SECONDS = int(os.environ.get("DJANGO_HSTS_SECONDS") or 3600) if HTTPS else 0
SECURE_HSTS_INCLUDE_SUBDOMAINS = SECURE_HSTS_PRELOAD = HTTPS
if _on("DJANGO_BEHIND_PROXY", False):
    SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https")

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "rest_framework",
    "channels",
    *_installed("drf_spectacular", "drf_spectacular_sidecar"),
    "django_ojs",
    *_installed("benchmarks"),  # the command ojs_bench, which is in a checkout only
    *_installed("ojs_conformance.djangoapp"),  # the command ojs_conformance, of packages/ojs-conformance
    "example_project",
]

MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.locale.LocaleMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
]

ROOT_URLCONF = "example_project.urls"
ASGI_APPLICATION = "example_project.asgi.application"
WSGI_APPLICATION = "example_project.wsgi.application"

TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ],
        },
    },
]


def _embedded_database() -> str:
    """SQLite in the data directory, which must be there before Django connects."""
    DATA_DIR.mkdir(parents=True, exist_ok=True)
    return f"sqlite:///{quote(str(DATA_DIR / 'db.sqlite3'))}"


DATABASES = {"default": parse_url(os.environ.get("DATABASE_URL") or _embedded_database(), BASE_DIR)}
if DATABASES["default"]["ENGINE"].endswith("postgresql") and not DATABASES["default"]["CONN_MAX_AGE"]:
    # Under ASGI each request has a thread of its own, and without a pool a new connection, which costs more than
    # all the rest of a request. Workers leave the pool to the server.
    DATABASES["default"]["OPTIONS"].setdefault("pool", dict(POOL_OPTIONS))
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

CHANNEL_LAYERS: dict[str, Any] = {"default": {"BACKEND": "channels.layers.InMemoryChannelLayer"}}
if redis_url := os.environ.get("REDIS_URL"):
    CHANNEL_LAYERS["default"] = {
        "BACKEND": "channels_redis.core.RedisChannelLayer",
        "CONFIG": {"hosts": [redis_url]},
    }

AUTH_PASSWORD_VALIDATORS = [
    {"NAME": f"django.contrib.auth.password_validation.{name}"}
    for name in (
        "UserAttributeSimilarityValidator",
        "MinimumLengthValidator",
        "CommonPasswordValidator",
        "NumericPasswordValidator",
    )
]

LANGUAGE_CODE = "en"
LANGUAGES = [("en", "English"), ("fr", "Français")]  # whichever the viewer's browser prefers
TIME_ZONE = "UTC"
USE_I18N = True
USE_TZ = True

STATIC_URL = "static/"
STATIC_ROOT = BASE_DIR / "staticfiles"

# Mail: files for the demo, a server on this machine in production.
_BACKEND = f"django.core.mail.backends.{'filebased' if DEBUG else 'smtp'}.EmailBackend"
if django.VERSION >= (6, 1):
    MAILERS = {"default": {"BACKEND": _BACKEND, "OPTIONS": {"file_path": DATA_DIR / "mail"} if DEBUG else {}}}
else:
    EMAIL_BACKEND = _BACKEND
    EMAIL_FILE_PATH = DATA_DIR / "mail"
DEFAULT_FROM_EMAIL = "jobs@example.com"


def _log_handler() -> dict[str, Any]:
    if log_file := os.environ.get("DJANGO_LOG_FILE"):
        return {
            "class": "logging.handlers.RotatingFileHandler",
            "filename": log_file,
            "maxBytes": 1_000_000,
            "backupCount": 1,
        }
    return {"class": "logging.StreamHandler"}


LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {
        "line": {"format": "{asctime} {levelname:<7} {name}: {message}", "style": "{"},
    },
    "handlers": {
        "log": {"formatter": "line", **_log_handler()},
    },
    "root": {"handlers": ["log"], "level": "WARNING"},
    "loggers": {
        # Listing "django" takes away the handlers that Django gives it, which would print each line twice.
        name: {"level": os.environ.get("DJANGO_LOG_LEVEL", "INFO").upper()}
        for name in ("django", "django_ojs", "example_project")
    }
    # A line for each change of each job would hide the others; failures are logged all the same.
    | {"django_ojs.jobs.lifecycle": {"level": "WARNING"}},
}

# What the demo leaves behind in an hour is all it ever leaves behind, however long it runs.
OJS: dict[str, Any] = {
    "SERVICE_NAME": "example-project",
    "SHUTDOWN_GRACE_PERIOD": 3.0,
    "GRPC": not grpc.missing(),
    "GRPC_SHUTDOWN_GRACE": 3.0,
    "RETENTION": {"completed": 3600.0, "cancelled": 3600.0, "discarded": 3600.0, "dead_letter": 86400.0},
    "DEAD_LETTER_MAX_COUNT": 500,
    "EVENT_RETENTION": 3600.0,
    "EVENT_MAX_COUNT": 100_000,
}
