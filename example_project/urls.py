from django.conf import settings
from django.contrib import admin
from django.urls import include, path
from django.views.generic import RedirectView

from example_project import views

urlpatterns = [
    path("", RedirectView.as_view(url="admin/")),
    path("admin/", admin.site.urls),
    path("", include("django_ojs.urls")),
    path("", include("django_ojs.http.probes")),  # /metrics, /health, /ready and others at the root
]

if settings.DEBUG:
    urlpatterns += [
        path("reports/", views.reports, name="reports"),
        path("reports/<slug:package>.html", views.report, name="report"),
    ]
