"""A job's page as it goes: what changes of it is asked for while somebody looks."""

from __future__ import annotations

import uuid
from typing import Any

from django.http import Http404, HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import URLPattern, path
from django.utils.cache import add_never_cache_headers

from django_ojs.admin import live
from django_ojs.admin.operate import OperatingAdmin

#: Seconds between two questions where there are no events: the page is one viewer's, and shared by nobody.
POLLING = 5.0


class JobLive(OperatingAdmin):
    """Adds the address to the admin of jobs. The script takes from the page the parts with `data-ojs-part`."""

    def get_urls(self) -> list[URLPattern]:
        name = f"{self.opts.app_label}_{self.opts.model_name}_live"
        view = self.admin_site.admin_view(self.live_view)
        return [path("<uuid:job_id>/live/", view, name=name), *super().get_urls()]

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        response = super().change_view(request, object_id, form_url, extra_context)
        if isinstance(response, TemplateResponse) and response.context_data is not None:
            job = response.context_data["original"]
            url = self._url("live", job.pk)
            response.context_data["follow"] = live.follow(request, url, live.JOB, every=POLLING, job_ids=job.pk)
        return response

    def live_view(self, request: HttpRequest, job_id: uuid.UUID) -> HttpResponse:
        """The page again, without the messages: they are for whoever acts, and told once."""
        if self.get_object(request, str(job_id)) is None:
            raise Http404
        response = self.change_view(request, str(job_id), extra_context={"messages": ()})
        add_never_cache_headers(response)
        return response
