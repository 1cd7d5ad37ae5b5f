"""The catalogues: compiled as they are written, whole, and silent where Django has words already; French in full."""

from __future__ import annotations

import os
import pickle
import re
from html import unescape
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.admin.sites import site
from django.test import Client
from django.urls import reverse
from django.utils import translation

from django_ojs import jsontext
from django_ojs.admin.charts import Chart, Series, describe
from django_ojs.admin.display import explain
from django_ojs.admin.history import event_summary
from django_ojs.errors import Conflict, InvalidStateTransition
from django_ojs.jobs.retry import retry
from django_ojs.messages import phrase, reason
from django_ojs.queues.configuration import configure
from tests.admin.conftest import dead, said, url
from tests.dashboard.everything import fill, pages
from tests.dashboard.texts import catalogue, folder, languages, missing, name, texts, theirs, untold, unused

_TEXT = r'((?:"(?:[^"\\]|\\.)*"\n?)+)'


every_language = pytest.mark.parametrize("language", languages())


@every_language
def test_what_is_compiled_is_what_is_written(language: str) -> None:
    source = (folder(language) / "django.po").read_text(encoding="utf-8")
    found = re.findall(rf"^(?:msgctxt {_TEXT})?msgid {_TEXT}", source, re.MULTILINE)
    written = {"\x04".join(_joined(text) for text in entry if text) for entry in found} - {""}
    compiled = catalogue(folder(language) / "django.mo")
    assert written == {name(key) for key in compiled}
    _, *told = re.findall(rf"^msgstr(?:\[\d\])? {_TEXT}", source, re.MULTILINE)
    assert set(map(_joined, told)) == set(compiled.values())
    assert "fuzzy" not in source


def _joined(text: str) -> str:
    parts = re.findall(r'"((?:[^"\\]|\\.)*)"', text)
    return "".join(parts).replace('\\"', '"').replace("\\n", "\n")


@every_language
def test_every_text_that_is_shown_is_in_the_catalogue_and_no_other(language: str) -> None:
    assert len(texts()) > 400, "else this looks in the wrong place"
    assert missing(language) == [], "python -m tests.dashboard.texts prints them"
    assert unused(language) == []


@every_language
def test_every_text_has_its_words_in_each_of_its_plurals_and_keeps_its_values(language: str) -> None:
    source = (folder(language) / "django.po").read_text(encoding="utf-8")
    forms = range(int(re.findall(r"nplurals=(\d)", source)[0]))
    found = catalogue(folder(language) / "django.mo")
    plurals = {name(key) for key in found if isinstance(key, tuple)}
    assert {text.key for text in texts() if text.plural} & {name(key) for key in found} == plurals
    assert all((text, form) in found for text in plurals for form in forms)
    for key, text in found.items():
        assert text
        values = set(re.findall(r"%\(\w+\)\w", name(key)))
        assert set(re.findall(r"%\(\w+\)\w", text)) ^ values <= {"%(number)s", "%(counter)s"}, key
        if "%(" in text:
            assert text % dict.fromkeys(re.findall(r"%\((\w+)\)", text), 0), "else a page with it is an error"
        assert text.count("<b>") == name(key).count("<b>")


@every_language
def test_djangos_own_words_stay_djangos(language: str) -> None:
    """A catalogue of an app wins over Django's, on every page of the site."""
    ours = {name(key) for key in catalogue(folder(language) / "django.mo")}
    for app in ("conf", "contrib/admin"):
        assert ours.isdisjoint(map(name, catalogue(theirs(app, language)))), app


@pytest.mark.django_db
def test_the_overview_speaks_french(admin_client: Client) -> None:
    with translation.override("fr"):
        body = admin_client.get("/admin/django_ojs/job/overview/").content.decode()
    for words in ("Vue d’ensemble", "Lettres mortes", "Durée d’attente des tâches", "En direct"):
        assert words in body


@pytest.fixture
def full(db: None) -> None:
    """Something on every page."""
    fill()


def share(language: str) -> slice:
    """Which of the pages are looked at in a language: a third, so that two languages and more share each; at night all.

    That a text is in a catalogue at all is found without a page.
    """
    return slice(None) if os.environ.get("OJS_TEST_FULL") == "1" else slice(languages().index(language) % 3, None, 3)


@pytest.mark.once
@pytest.mark.wide
@every_language
def test_every_page_speaks_it(admin_client: Client, full: None, settings: Any, language: str) -> None:
    settings.OJS = {"OUTBOX": "default"}
    settings.LANGUAGE_CODE = code = translation.to_language(language)
    english = [text.text for text in texts() if len(text.text) > 24 and "%" not in text.text]
    for page in pages(site)[share(language)]:
        response = admin_client.get(page)
        assert response.status_code == 200, page
        body = response.content.decode()
        assert f'<html lang="{code}"' in body, page
        assert not [text for text in english if f">{text}<" in body or f" {text}</p>" in body], page


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


# What operations refuse


def test_every_refusal_that_an_operator_may_meet_can_be_translated() -> None:
    assert untold() == []


def test_a_refusal_is_in_the_viewers_language_and_over_http_in_english(admin_client: Client, settings: Any) -> None:
    settings.LANGUAGE_CODE = "fr"
    (job,) = dead()
    admin_client.post(url("job", "verb", job.pk, "retry_dead_letters"))
    told = said(admin_client.post(url("job", "verb", job.pk, "retry_dead_letters"), follow=True))
    assert told[-1].endswith(f"impossible pour la tâche « {job.pk} » : elle est dans l’état available, et « retry » ne "
                             "mène à available que depuis discarded.")  # fmt: skip
    (refused,) = retry([job.pk])
    assert isinstance(refused, InvalidStateTransition)
    with translation.override("fr"):
        text = jsontext.dumps(refused.as_dict())
    assert f"Cannot retry job '{job.pk}': it is available, and retry leads to available from" in text
    assert type(refused.message) is str


def test_a_fault_in_a_form_is_told_in_the_viewers_language(admin_client: Client, settings: Any) -> None:
    settings.LANGUAGE_CODE = "fr"
    configure("sms", {})
    body = admin_client.post(url("queue", "change", "sms"), {"keep_completed": "soon"}).content.decode()
    assert "retention.completed : doit être une durée" in body
    body = admin_client.post(url("queue", "add"), {"name": "No Name"}).content.decode()
    assert "Nom refusé : doit être fait de lettres minuscules" in body
    schedule = {
        "name": "x", "expression": "61 * * * *", "timezone": "EST", "type": "a.b", "queue": "default", "args": "[]",
        "overlap_policy": "skip", "enabled": "on",
    }  # fmt: skip
    body = admin_client.post(url("cronschedule", "add"), schedule).content.decode()
    assert "doit être UTC ou un nom IANA de la forme Région/Ville ; il s’agit peut-être de America/New_York" in body
    (job,) = dead()
    sent = {"queue": "claims", "priority": "0", "args": "[", "meta": ""}
    body = admin_client.post(url("job", "edit", job.pk), sent).content.decode()
    assert "Ce n’est pas du JSON" in body
    key = {"name": "-", "scopes": ["push"], "queues": "Mail", "job_types": "Mail", "expires_at_0": "2001-01-01",
           "expires_at_1": "00:00:00"}  # fmt: skip
    body = unescape(admin_client.post(url("apikey", "add"), key).content.decode())
    assert "push : mettre des tâches en file" in body
    for told in ("Un nom a de 1 à 100 lettres", "« Mail » n’est pas un nom de file : il doit être fait de lettres",
                 "« Mail » n’est pas un type de tâche : il doit", "C’est dans le passé"):  # fmt: skip
        assert told in body


def test_what_is_told_keeps_its_parts_through_exceptions() -> None:
    inner = phrase("must be an integer from %(minimum)s to %(maximum)s", minimum=1, maximum=5)
    error = Conflict(phrase("%(field)s: %(problem)s.", field="a", problem=reason(ValueError(inner))))
    assert str(error) == error.message == "a: must be an integer from 1 to 5."
    copy = pickle.loads(pickle.dumps(error))
    with translation.override("fr"):
        assert explain(error) == explain(copy) == "a : doit être un entier de 1 à 5."
        assert explain(Conflict("As a site's middleware says.")) == "As a site's middleware says."


def test_a_chart_and_an_event_speak_french(db: None) -> None:
    chart = Chart("c", "Jobs", ["10:00", "10:01"], [Series("terminées", [3, 1], "good")])
    with translation.override("fr"):
        assert describe(chart) == "terminées : au plus 3 (10:00), 1 à 10:01"
        assert (
            event_summary({"paused_by": "user:ann", "delay_ms": 5}, "") == "mise en pause par: user:ann, délai, ms: 5"
        )


def test_the_live_events_are_told_the_words_in_the_viewers_language(admin_client: Client, settings: Any) -> None:
    settings.LANGUAGE_CODE = "fr"
    body = unescape(admin_client.get(reverse("admin:django_ojs_event_tail")).content.decode())
    assert '"cancelled_by":"annulée par"' in body.replace(": ", ":")


def test_the_history_of_a_job_says_what_was_changed_in_the_language_of_who_did_it(
    admin_client: Client, settings: Any
) -> None:
    settings.LANGUAGE_CODE = "fr"
    (job,) = dead()
    sent = {"queue": "elsewhere", "priority": "0", "args": '["b@example.com"]', "meta": ""}
    admin_client.post(url("job", "edit", job.pk), sent)
    assert LogEntry.objects.get().change_message == "Remise à disposition, modifiée : args, queue."
