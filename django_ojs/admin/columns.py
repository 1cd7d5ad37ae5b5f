"""Columns of lists and pages that show one attribute in one way: `created = time("created_at", "created")`.

Their heads are translated here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.contrib import admin
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy

from django_ojs.admin import display
from django_ojs.rules import redaction

Column = Callable[[Any, Any], SafeString | str]


def shown_by(render: Callable[[Any], SafeString | str]) -> Callable[[str, str], Column]:
    """A maker of columns that render their attribute with `render`."""

    def column(attribute: str, description: str) -> Column:
        return admin.display(description=gettext_lazy(description))(
            lambda model_admin, obj: render(getattr(obj, attribute))
        )

    return column


def part(name: str) -> Callable[[str, str], Column]:
    """A maker of columns with a part of a job as JSON, without what the site hides."""

    def column(attribute: str, description: str) -> Column:
        def shown(model_admin: Any, job: Any) -> SafeString | str:
            return display.json(redaction.part(name, getattr(job, attribute), job.type, job.meta))

        return admin.display(description=gettext_lazy(description))(shown)

    return column


time = shown_by(display.when)
ago = shown_by(display.ago)
duration = shown_by(display.duration)
label = shown_by(display.label)
code = shown_by(display.code)
ends = shown_by(display.ends)
codes = shown_by(display.codes)
json = shown_by(display.json)
