"""Settings of that site. A worker's database is named by OJS_SITE_DATABASE; a server makes its own."""

from __future__ import annotations

import os
from pathlib import Path

from django_ojs.database import parse_url

SECRET_KEY = "conformance: holds nothing"  # noqa: S105 - a throwaway site without users
INSTALLED_APPS = [
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "rest_framework",
    "channels",
    "django_ojs",
    "ojs_conformance.djangoapp.site",
]
DATABASES = {"default": parse_url(os.environ.get("OJS_SITE_DATABASE", "sqlite:///:memory:"), Path.cwd())}
DATABASES["default"]["OPTIONS"].pop("pool", None)
if DATABASES["default"]["ENGINE"].endswith("mysql"):
    DATABASES["default"]["TEST"] = {"CHARSET": "utf8mb4"}
ROOT_URLCONF = "django_ojs.testing.urls"
MIDDLEWARE: list[str] = []
CHANNEL_LAYERS = {"default": {"BACKEND": "channels.layers.InMemoryChannelLayer"}}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
TIME_ZONE = "UTC"
USE_TZ = True
