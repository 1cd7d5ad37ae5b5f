"""What every page of ours in the admin shows: where else one may go, and whether maintenance mode is on.

Tags, since these are also on pages whose context Django alone makes. They import the admin late: Django loads every
library of tags, also on sites without the admin, where it cannot be imported.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from django import template
from django.utils.html import escape, strip_tags
from django.utils.safestring import SafeString, mark_safe
from django.utils.text import capfirst

register = template.Library()


@register.simple_tag(takes_context=True)
def ojs_pages(context: template.Context, here: str = "", live: object = False) -> dict[str, Any]:
    """`nav.links` of this page: what its user may see, from what the admin site has found out already. `live`: for the
    part of a page that is asked for again and again."""
    from django_ojs.admin import base

    request = context.get("request")
    apps = context.get("available_apps") or ()
    return base.links(request, apps, here, bool(live)) if request is not None else {}


@register.simple_tag(takes_context=True)
def ojs_maintenance(context: template.Context, live: object = False) -> dict[str, Any] | None:
    """What there is to say; None while it is off. `live`: for the part of a page that is asked for again and again."""
    from django_ojs.admin import maintenance

    return maintenance.banner(context["request"], live=bool(live))


@register.filter
def ojs_count(number: int) -> str:
    """A number of things, as every page and message of ours writes it: 12,345."""
    return f"{number:,}"


_HEAD, _CELL_OR_ROW = re.compile(r"<th scope=\"col\"[^>]*>(.*?)</th>", re.DOTALL), re.compile(r"<(tr|td|th)\b")


@register.filter
def ojs_cards(table: SafeString) -> SafeString:
    """A table of ours whose rows are cards on a phone: each cell gets the name of its column in `data-label`, '' where
    that is for screen readers only."""
    head, end, body = table.replace('class="ojs-table"', 'class="ojs-table ojs-carded"').partition("</thead>")
    labels = ["" if "ojs-hidden" in name else strip_tags(name) for name in _HEAD.findall(head)]
    rows, foot, rest = body.partition("<tfoot")
    place = 0

    def labelled(tag: re.Match[str]) -> str:
        nonlocal place
        place = 0 if tag[1] == "tr" else place + 1
        return tag[0] if place == 0 or place > len(labels) else f'{tag[0]} data-label="{labels[place - 1]}"'

    return mark_safe(head + end + _CELL_OR_ROW.sub(labelled, rows) + foot + rest)  # noqa: S308 - it was safe


_COLUMN = re.compile(r"\bcolumn-([\w.-]+)")
_CELL = re.compile(r'(?<=<td )class="field-([\w.-]+)')


@register.filter
def ojs_labelled(results: SafeString, headers: Sequence[Mapping[str, Any]]) -> SafeString:
    """The rows of a list, each cell with the name of its column in `data-label`, where a phone shows no header."""
    found = ((_COLUMN.search(header.get("class_attrib") or ""), header) for header in headers)
    labels = {column[1]: escape(capfirst(header["text"])) for column, header in found if column}
    return mark_safe(  # noqa: S308 - Django's own rows, and names that are escaped
        _CELL.sub(lambda cell: f'data-label="{labels.get(cell[1], "")}" {cell[0]}', results)
    )
