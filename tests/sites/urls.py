from django.apps import apps
from django.urls import include, path

urlpatterns = [path("", include("django_ojs.urls"))]
if apps.is_installed("django.contrib.admin"):
    from django.contrib import admin

    urlpatterns.append(path("back/office/", admin.site.urls))
