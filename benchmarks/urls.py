"""The URLs of the benchmark: those of django-ojs, and beside them the least that DRF can do with a POST."""

from __future__ import annotations

from django.urls import include, path
from rest_framework.permissions import AllowAny
from rest_framework.renderers import JSONRenderer
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView


class BareView(APIView):
    """Reads JSON and answers with it, without a database: what other rates are compared with."""

    authentication_classes = ()
    permission_classes = (AllowAny,)
    renderer_classes = (JSONRenderer,)

    def post(self, request: Request) -> Response:
        return Response(request.data, status=201)


urlpatterns = [path("bare", BareView.as_view()), path("", include("django_ojs.urls"))]
