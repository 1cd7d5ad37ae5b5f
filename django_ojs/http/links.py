"""The paths of our own resources, as the caller has to write them.

`request.path` is what this process was asked for. A proxy may have taken a prefix away that the caller needs. Django
knows it from `FORCE_SCRIPT_NAME`, from `SCRIPT_NAME` or from ASGI's `root_path`, and `reverse` puts it before a path.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from django.http import HttpRequest
from django.urls import get_script_prefix, reverse
from django.utils.encoding import iri_to_uri
from rest_framework.request import Request
from rest_framework.viewsets import GenericViewSet


def to(request: Request | HttpRequest, name: str, *args: Any) -> str:
    """The path of our URL of this name, where the site that was asked has put it."""
    match: Any = request.resolver_match  # None where a view is called and not a path
    namespaces = match.namespaces if match is not None else []
    # gRPC needs no URLs of a site
    urlconf = getattr(request, "urlconf", None) if namespaces else "django_ojs.urls"
    return reverse(":".join([*namespaces, name]), urlconf=urlconf, args=args)


def to_new(request: Request, view: GenericViewSet[Any], identifier: object) -> str:
    """The path of what a call has made: below the list that a POST went to, wherever a site has put that, or the path
    itself that a PUT named."""
    path = iri_to_uri(f"{get_script_prefix().rstrip('/')}{request.path_info.rstrip('/')}")
    return path if view.lookup_url_kwarg in view.kwargs else f"{path}/{quote(str(identifier), safe='')}"


def prefix(request: Request) -> str:
    """What stands before `/ojs` in our paths."""
    return to(request, "manifest").removesuffix("/ojs/manifest")
