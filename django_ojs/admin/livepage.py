"""The page of one object as it goes: what changes of it is asked for while somebody looks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from django.contrib.admin.utils import quote, unquote
from django.http import Http404, HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import URLPattern, path
from django.utils.cache import add_never_cache_headers

from django_ojs.admin import live
from django_ojs.admin.operate import OperatingAdmin

#: Seconds between two questions where there are no events: the page is one viewer's, and shared by nobody.
POLLING = 5.0


class LivePage(OperatingAdmin):
    """Adds the address to an admin. The script takes from the page the parts with `data-ojs-part`."""

    #: Events that change the page, and the member of the subscription's filter that its primary key is; '': none.
    live_types: ClassVar[Sequence[str]] = ()
    live_filter: ClassVar[str] = ""

    def get_urls(self) -> list[URLPattern]:
        name = f"{self.opts.app_label}_{self.opts.model_name}_live"
        view = self.admin_site.admin_view(self.live_view)
        return [path("<path:object_id>/live/", view, name=name), *super().get_urls()]

    def live_age(self, obj: Any) -> float:
        """Seconds between two looks at least, for a page that costs more than others."""
        return 0.0

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        response = super().change_view(request, object_id, form_url, extra_context)
        if isinstance(response, TemplateResponse) and response.context_data is not None:
            obj = response.context_data["original"]
            only = {self.live_filter: obj.pk} if self.live_filter else {}
            url, age = self._url("live", quote(obj.pk)), self.live_age(obj)
            response.context_data["follow"] = live.follow(
                request, url, self.live_types, age=age, every=age or POLLING, **only
            )
        return response

    def live_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """The page again, without the messages: they are for whoever acts, and told once."""
        if self.get_object(request, unquote(object_id)) is None:
            raise Http404
        response = self.change_view(request, object_id, extra_context={"messages": ()})
        add_never_cache_headers(response)
        return response
