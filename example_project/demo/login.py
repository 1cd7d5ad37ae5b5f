"""Make the user who logs in to the demo's admin. The password is random, and known to this checkout only."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from django.contrib.auth import get_user_model

NAME = "demo"


def ensure(file: Path) -> str:
    """Make the demo's superuser unless it is there; return its password, which `file` keeps.

    Empty if it has another password than `file` says, because a user has changed it.
    """
    password = _stored(file)
    user = get_user_model().objects.filter(username=NAME).first()
    if user is None:
        get_user_model().objects.create_superuser(NAME, password=password)
        return password
    return password if user.check_password(password) else ""


def _stored(file: Path) -> str:
    """What the file says; a new password, in a new file that only its owner may read, if there is none."""
    try:
        return file.read_text().strip()
    except FileNotFoundError:
        password = secrets.token_urlsafe(9)
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(descriptor, "w") as stream:  # noqa: PTH123 - a descriptor has no path
        stream.write(f"{password}\n")
    return password
