"""Secrets at rest: encrypted with keys made of SECRET_KEY and its fallbacks, because signing needs them back."""

from __future__ import annotations

import base64
import secrets
from functools import lru_cache
from typing import TYPE_CHECKING

from django.conf import settings
from django.utils.crypto import salted_hmac

from django_ojs import webhooks
from django_ojs.errors import Unsupported
from django_ojs.messages import phrase

if TYPE_CHECKING:
    from cryptography.fernet import MultiFernet

_PURPOSE = "django_ojs.webhooks.sealing"


class Unreadable(ValueError):
    """The text was sealed under a SECRET_KEY that is no longer among the site's."""


def new_secret() -> str:
    """256 random bits, with the prefix that receivers' libraries know."""
    return "whsec_" + base64.b64encode(secrets.token_bytes(32)).decode()


def seal(text: str) -> str:
    """`text` encrypted and authenticated under the site's current key; '' stays ''."""
    return _box().encrypt(text.encode("utf-8", "surrogatepass")).decode() if text else ""


def unseal(sealed: str) -> str:
    """What `seal` was given. Raises Unreadable."""
    if not sealed:
        return ""
    box = _box()
    from cryptography.fernet import InvalidToken

    try:
        return box.decrypt(sealed.encode()).decode("utf-8", "surrogatepass")
    except InvalidToken as error:
        raise Unreadable(
            "The secret was stored under another SECRET_KEY: put that into SECRET_KEY_FALLBACKS, or rotate the secret."
        ) from error


def _box() -> MultiFernet:
    if webhooks.missing():
        raise Unsupported(
            phrase(
                "Webhooks need %(missing)s, which this server does not have.", missing=" and ".join(webhooks.missing())
            ),
            hint=webhooks.HINT,
        )
    return _box_of((settings.SECRET_KEY, *settings.SECRET_KEY_FALLBACKS))


@lru_cache(maxsize=4)
def _box_of(keys: tuple[str | bytes, ...]) -> MultiFernet:
    from cryptography.fernet import Fernet, MultiFernet

    derived = (salted_hmac(_PURPOSE, "", secret=key, algorithm="sha256").digest() for key in keys)
    return MultiFernet([Fernet(base64.urlsafe_b64encode(key)) for key in derived])
