"""A second admin site, of a class of its own, beside the first."""

from django.contrib import admin
from django.urls import path

from django_ojs.admin.job import JobAdmin
from django_ojs.admin.queue import QueueAdmin
from django_ojs.models import Job, Queue
from tests.urls import urlpatterns as others


class Backstage(admin.AdminSite):
    site_header = "Backstage"


backstage = Backstage(name="backstage")
backstage.register(Job, JobAdmin)
backstage.register(Queue, QueueAdmin)

urlpatterns = [path("backstage/", backstage.urls), *others]
