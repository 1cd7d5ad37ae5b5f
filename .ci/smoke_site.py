"""Run beside a fresh `django-admin startproject site_of_user .`: is the installed package usable there?"""

import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
SETTINGS = """
INSTALLED_APPS += ["rest_framework", "channels", "django_filters", "django_ojs"]
DATABASES["default"]["OPTIONS"] = {
    "transaction_mode": "IMMEDIATE",
    "timeout": 20,
    "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL",
}
"""
URLS = """
from django.urls import include
urlpatterns += [path("", include("django_ojs.urls"))]
"""


def manage(*arguments: str) -> None:
    subprocess.run([sys.executable, "manage.py", *arguments], cwd=HERE, check=True)


for name, text in (("settings", SETTINGS), ("urls", URLS)):
    with (HERE / "site_of_user" / f"{name}.py").open("a") as file:
        file.write(text)

manage("migrate", "--verbosity", "0")
manage("check", "--fail-level", "WARNING")
manage("makemigrations", "--check", "--dry-run")

os.environ["DJANGO_SETTINGS_MODULE"] = "site_of_user.settings"
import django  # noqa: E402

django.setup()
from django.test import Client  # noqa: E402

import django_ojs  # noqa: E402

assert "site-packages" in django_ojs.__file__, django_ojs.__file__
assert (Path(django_ojs.__file__).parent / "py.typed").exists()
client = Client(SERVER_NAME="localhost")
manifest = client.get("/ojs/manifest")
assert manifest.status_code == 200, (manifest.status_code, manifest.content)
job = {"type": "smoke.test", "args": [1]}
pushed = client.post("/ojs/v1/jobs", job, content_type="application/json")
assert pushed.status_code == 201, (pushed.status_code, pushed.content)
assert client.get("/admin/login/").status_code == 200
print("django-ojs", django_ojs.__version__, "works in a site of its own")
