"""The registered schemas of arguments: read only, they are registered over HTTP and by commands."""

from __future__ import annotations

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _

from django_ojs.admin import columns
from django_ojs.admin.base import TextFilter, ViewAdmin
from django_ojs.models import JobSchema


class JobTypeFilter(TextFilter):
    title, parameter_name, field, placeholder = _("job type"), "job_type", "job_type", _("mail.send or mail.*")


@admin.register(JobSchema)
class JobSchemaAdmin(ViewAdmin):
    list_display = ("job_type", "version", "shown_uri", "created")
    list_filter = (JobTypeFilter,)
    ordering = ("job_type", "-id")
    fields = ("job_type", "version", "shown_uri", "created", "document")
    readonly_fields = fields

    def get_queryset(self, request: HttpRequest) -> QuerySet[JobSchema]:
        """Without the documents, which may be large; a page reads its own."""
        found: QuerySet[JobSchema] = super().get_queryset(request)
        return found.defer("schema")

    shown_uri = columns.code("uri", "URI")
    created = columns.time("created_at", "created")
    document = columns.json("schema", "schema")
