"""Optional URLs at the root of the site, for load balancers, monitoring and for clients that look there.

`django_ojs.urls` has nothing outside `/ojs`, so that it collides with nothing of the site. Whoever wants
`/health`, `/healthz`, `/ready`, `/readyz` and `/metrics` too adds `path("", include("django_ojs.http.probes"))`.
"""

from __future__ import annotations

from django.urls import path

from django_ojs.http import metrics, system

urlpatterns = [
    path("health", system.Health.as_view()),
    path("metrics", metrics.Prometheus.as_view()),
    path("healthz", system.Alive.as_view()),
    path("ready", system.Ready.as_view()),
    path("readyz", system.Ready.as_view()),
]
