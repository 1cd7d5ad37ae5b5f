"""The static files of the package, as a site collects them."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from django.contrib.staticfiles.storage import staticfiles_storage
from django.core.management import call_command

#: How a script or a style sheet names another file.
REFERENCES = re.compile(r"""(?:\bfrom|\bimport)\s*\(?\s*["']([^"']+)["']|\burl\(\s*["']?([^"')]+)""")


def test_every_file_is_named_by_its_hash(settings: Any, tmp_path: Path) -> None:
    """Django's own storage for production; a browser keeps for ever what has a hash, and else asks for an old file."""
    settings.STATIC_ROOT = tmp_path
    storage = "django.contrib.staticfiles.storage.ManifestStaticFilesStorage"
    settings.STORAGES = {**settings.STORAGES, "staticfiles": {"BACKEND": storage}}
    call_command("collectstatic", interactive=False, verbosity=0)
    hashed = {name: kept for name, kept in staticfiles_storage.hashed_files.items() if name.startswith("django_ojs/")}
    assert {"django_ojs/admin.css", "django_ojs/events.js"} <= set(hashed)
    named = []
    for name, kept in hashed.items():
        if not name.endswith((".js", ".css")):
            continue
        for references in REFERENCES.findall((tmp_path / kept).read_text()):
            target = posixpath.normpath(posixpath.join("django_ojs", "".join(references)))
            if not "".join(references).startswith(("data:", "#")) and target not in hashed.values():
                named.append((name, target))
    assert named == []
