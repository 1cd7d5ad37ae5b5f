"""What every page of ours in the admin shows: where else one may go, and whether maintenance mode is on.

Tags, since these are also on pages whose context Django alone makes. They import the admin late: Django loads every
library of tags, also on sites without the admin, where it cannot be imported.
"""

from __future__ import annotations

from typing import Any

from django import template

register = template.Library()


@register.simple_tag(takes_context=True)
def ojs_pages(context: template.Context, here: str = "") -> dict[str, Any]:
    """`nav.links` of this page: what its user may see, from what the admin site has found out already."""
    from django_ojs.admin import base

    request = context.get("request")
    return base.links(request, context.get("available_apps") or (), here) if request is not None else {}


@register.simple_tag(takes_context=True)
def ojs_maintenance(context: template.Context, live: object = False) -> dict[str, Any] | None:
    """What there is to say; None while it is off. `live`: for the part of a page that is asked for again and again."""
    from django_ojs.admin import maintenance

    return maintenance.banner(context["request"], live=bool(live))
