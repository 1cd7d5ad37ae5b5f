"""What a client may demand of this server in headers: a protocol version (binding 1.3) and extensions."""

from __future__ import annotations

import re

from django.http import HttpRequest

from django_ojs.errors import Unsupported
from django_ojs.http import manifest
from django_ojs.policies.faults import shorten

_VERSION = re.compile(r"1(\.0(\.0)?)?(-rc\.[0-9]+)?")
SUPPORTED = ["1.0", "1.0.0-rc.1"]


def check(request: HttpRequest) -> None:
    """Raise Unsupported for a version or an extension that this server does not have."""
    meta = request.META
    if (version := meta.get("HTTP_OJS_VERSION")) is not None and not _VERSION.fullmatch(version.strip(" \t")):
        raise Unsupported(
            f"OJS-Version {shorten(version)!r} is not supported.",
            details={"received": shorten(version), "supported": SUPPORTED},
            hint="Send OJS-Version: 1.0, or leave the header out.",
        )
    if "HTTP_OJS_REQUIRES_EXTENSION" in meta:
        _check_extensions(meta["HTTP_OJS_REQUIRES_EXTENSION"])


def _check_extensions(header: str) -> None:
    known = manifest.extension_uris()
    for urn in filter(None, map(str.strip, header.split(","))):
        if urn not in known:
            short = shorten(urn)
            raise Unsupported(
                f"This server does not have the extension {short!r}.",
                details={"extension": short, "supported": sorted(known)},
                extra={"extension": short},
            )
