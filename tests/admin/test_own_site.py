"""A site with an AdminSite of its own has all our pages on it by one call, and a check says where it has none."""

from __future__ import annotations

import sys
import types
from typing import Any

import pytest
from django.apps import apps
from django.contrib import admin
from django.contrib.auth.models import User
from django.test import Client
from django.urls import path, reverse

from django_ojs import checks, enqueue
from django_ojs.admin import PAGES, register_all
from django_ojs.admin.job import JobAdmin
from django_ojs.models import Job, Queue

OURS = {model for model in admin.site._registry if model._meta.app_label == "django_ojs"}


def test_all_models_of_the_default_site_are_on_it() -> None:
    site = admin.AdminSite("bare")
    register_all(site)
    assert set(site._registry) == OURS == set(PAGES)
    assert {type(site._registry[model]) for model in OURS} == set(PAGES.values())


def test_what_the_site_has_registered_itself_stays() -> None:
    class Ours(JobAdmin):
        pass

    site = admin.AdminSite("bare")
    site.register(Job, Ours)
    register_all(site)
    register_all(site)
    assert type(site._registry[Job]) is Ours
    assert site.is_registered(Queue)


@pytest.mark.django_db
@pytest.mark.urls("tests.admin.urls_own_site")
def test_its_pages_answer_and_link_to_one_another() -> None:
    client = Client()
    client.force_login(User.objects.create_superuser("root", password="x"))
    handle = enqueue("mail.send", 1)
    for name, *args in (
        ("overview",), ("dead_letters",), ("doctor",), ("job_changelist",), ("job_change", str(handle.id)),
        ("queue_change", "default"), ("maintenance",),
    ):  # fmt: skip
        address = reverse(f"admin:django_ojs_{name}", args=args, current_app="staff")
        answer = client.get(address)
        assert (answer.status_code, address[:7]) == (200, "/staff/"), name
        assert "/admin/django_ojs/" not in answer.content.decode()


@pytest.mark.django_db
@pytest.mark.urls("tests.admin.urls_two_sites")
def test_the_pages_of_each_of_two_sites_link_to_their_own() -> None:
    client = Client()
    client.force_login(User.objects.create_superuser("root", password="x"))
    for here, there in (("admin", "staff"), ("staff", "admin")):
        for name in ("overview", "dead_letters", "doctor", "job_changelist", "maintenance"):
            text = client.get(reverse(f"admin:django_ojs_{name}", current_app=here)).content.decode()
            assert f"/{here}/django_ojs/" in text, name
            assert f"/{there}/django_ojs/" not in text, name


@pytest.mark.django_db
def test_pages_beside_those_of_classes_of_the_sites_own_answer(monkeypatch: pytest.MonkeyPatch, settings: Any) -> None:
    site = admin.AdminSite("bare")
    for model in OURS - {Job}:
        site.register(model, admin.ModelAdmin)
    register_all(site)
    TestCheck().urls(monkeypatch, settings, site)
    client = Client()
    client.force_login(User.objects.create_superuser("root", password="x"))
    handle = enqueue("mail.send", 1)
    pages = [("overview",), ("dead_letters",), ("doctor",), ("job_change", str(handle.id))]
    for name, *args in [*pages, *((f"{model._meta.model_name}_changelist",) for model in OURS)]:
        assert client.get(reverse(f"admin:django_ojs_{name}", args=args)).status_code == 200, name


class TestCheck:
    def urls(self, monkeypatch: pytest.MonkeyPatch, settings: Any, *sites: admin.AdminSite) -> None:
        module = types.ModuleType("urls_of_this_test")
        module.urlpatterns = [path(f"{site.name}/", site.urls) for site in sites]  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, module.__name__, module)
        settings.ROOT_URLCONF = module.__name__

    def test_an_admin_without_our_pages_is_told_how(self, monkeypatch: pytest.MonkeyPatch, settings: Any) -> None:
        """Django's own site has them, and no URL leads to it."""
        bare = admin.AdminSite("bare")
        self.urls(monkeypatch, settings, bare)
        (problem,) = checks.check_admin()
        assert (problem.id, "'bare'" in problem.msg) == ("django_ojs.W016", True)
        assert "django_ojs.admin.register_all(site)" in problem.hint
        register_all(bare)
        assert checks.check_admin() == []

    def test_one_of_several_is_enough(self, monkeypatch: pytest.MonkeyPatch, settings: Any) -> None:
        self.urls(monkeypatch, settings, admin.AdminSite("for_customers"), admin.site)
        assert checks.check_admin() == []

    def test_a_site_without_an_admin_wants_none(self, monkeypatch: pytest.MonkeyPatch, settings: Any) -> None:
        self.urls(monkeypatch, settings)
        assert checks.check_admin() == []
        monkeypatch.setattr(apps, "is_installed", lambda name: name != "django.contrib.admin")
        assert checks.check_admin() == []
