"""The French catalogue: compiled as it is written, whole, and silent where Django has words already."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import django
import pytest
from django.contrib.admin.sites import site
from django.contrib.admin.utils import quote
from django.test import Client
from django.urls import reverse
from django.utils import translation

from django_ojs import keys
from django_ojs.models import WebhookSubscription
from django_ojs.operations import audit, cron, workflow
from django_ojs.operations.configure import configure
from django_ojs.operations.pause import pause
from django_ojs.operations.register import register
from tests.admin.conftest import dead, one_in_each_state, said, url
from tests.dashboard.texts import FRENCH, catalogue, missing, name, texts, unused

_TEXT = r'((?:"(?:[^"\\]|\\.)*"\n?)+)'


def test_what_is_compiled_is_what_is_written() -> None:
    source = (FRENCH / "django.po").read_text()
    found = re.findall(rf"^(?:msgctxt {_TEXT})?msgid {_TEXT}", source, re.MULTILINE)
    written = {"\x04".join(_joined(text) for text in entry if text) for entry in found} - {""}
    assert written == {name(key) for key in catalogue(FRENCH / "django.mo")}
    assert "fuzzy" not in source


def _joined(text: str) -> str:
    parts = re.findall(r'"((?:[^"\\]|\\.)*)"', text)
    return "".join(parts).replace('\\"', '"').replace("\\n", "\n")


def test_every_text_that_is_shown_is_in_the_catalogue_and_no_other() -> None:
    assert len(texts()) > 400, "else this looks in the wrong place"
    assert missing() == [], "python -m tests.dashboard.texts prints them"
    assert unused() == []


def test_every_text_has_its_words_and_keeps_its_values() -> None:
    for key, text in catalogue(FRENCH / "django.mo").items():
        assert text
        values = set(re.findall(r"%\(\w+\)\w", name(key))) | {"%(number)s", "%(counter)s"}
        assert set(re.findall(r"%\(\w+\)\w", text)) <= values, key
        assert text.count("<b>") == name(key).count("<b>")


def test_djangos_own_words_stay_djangos() -> None:
    """A catalogue of an app wins over Django's, on every page of the site."""
    ours = {name(key) for key in catalogue(FRENCH / "django.mo")}
    for app in ("conf", "contrib/admin"):
        theirs = catalogue(Path(django.__file__).parent / app / "locale/fr/LC_MESSAGES/django.mo")
        assert ours.isdisjoint(map(name, theirs)), app


@pytest.mark.django_db
def test_the_overview_speaks_french(admin_client: Client) -> None:
    with translation.override("fr"):
        body = admin_client.get("/admin/django_ojs/job/overview/").content.decode()
    for words in ("Vue d’ensemble", "Lettres mortes", "Tâches par minute, dernière heure", "En direct"):
        assert words in body


@pytest.fixture
def full(db: None) -> None:
    """Something on every page."""
    one_in_each_state()
    dead()
    pause("mail", by="ann")
    configure("sms", {"concurrency": 5})
    register("w-1", {"queues": ["mail"], "hostname": "box", "job_types": ["a.b"], "concurrency": 4})
    cron.register({"name": "nightly", "cron": "30 2 * * *", "timezone": "Europe/Paris", "type": "a.b", "args": []})
    cron.register({"name": "coded", "cron": "@every 5m", "type": "a.b", "args": []}, source="code")
    workflow.create({"type": "chain", "name": "x", "steps": [{"type": "a.b", "args": []}]})
    audit.append([audit.Act("user:a", "queue.pause", "q")], "default")
    keys.create("k", ["read"])
    now = cron.get("nightly").created_at
    made = {"events": ["job.*"], "secret": "", "created_by": "x", "active": False, "created_at": now, "updated_at": now}
    WebhookSubscription.objects.create(url="https://example.com/x", **made)


def test_every_page_speaks_french(admin_client: Client, full: None, settings: Any) -> None:
    settings.OJS = {"OUTBOX": "default"}
    settings.LANGUAGE_CODE = "fr"
    english = [text.text for text in texts() if len(text.text) > 24 and "%" not in text.text]
    found = {model: admin for model, admin in site._registry.items() if model._meta.app_label == "django_ojs"}
    assert len(found) > 10
    for page in (page for model, admin in found.items() for page in _pages(model, admin)):
        response = admin_client.get(page)
        assert response.status_code == 200, page
        body = response.content.decode()
        assert '<html lang="fr"' in body, page
        assert not [text for text in english if f">{text}<" in body or f" {text}</p>" in body], page


def _pages(model: Any, admin: Any) -> Iterator[str]:
    """The list of a model, its form, two of its objects, and a question for each verb."""
    kind = str(model._meta.model_name)
    yield url(kind)
    for obj in model._default_manager.order_by("pk")[:2]:
        yield url(kind, "change", quote(obj.pk))
        yield from (url(kind, "verb", quote(obj.pk), verb.name) for verb in getattr(admin, "verbs", ()))
    if kind in ("queue", "cronschedule", "apikey", "webhooksubscription"):
        yield url(kind, "add")
    if kind == "event":
        yield reverse("admin:django_ojs_event_tail")
    if kind == "job":
        yield from (reverse(f"admin:django_ojs_{name}") for name in ("overview", "dead_letters"))


def test_what_is_said_after_an_act_is_french(admin_client: Client, settings: Any) -> None:
    settings.LANGUAGE_CODE = "fr"
    configure("sms", {})
    told = said(admin_client.post(url("queue", "verb", "sms", "pause_queues"), {"sure": "yes"}, follow=True))
    assert told == ["1 file : mise en pause."]


@pytest.mark.django_db
def test_names_of_models_make_no_migration() -> None:
    from django.core.management import call_command

    with translation.override("fr"):
        call_command("makemigrations", "django_ojs", check=True, dry_run=True, verbosity=0)
