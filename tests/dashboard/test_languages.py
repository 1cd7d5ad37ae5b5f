"""The French catalogue: compiled as it is written, whole, and silent where Django has words already."""

from __future__ import annotations

import gettext
import re
from pathlib import Path
from typing import Any

import django
import pytest
from django.test import Client
from django.utils import translation

import django_ojs

FRENCH = Path(django_ojs.__file__).parent / "locale/fr/LC_MESSAGES"
_TEXT = r'((?:"(?:[^"\\]|\\.)*"\n?)+)'


def catalogue(file: Path) -> dict[Any, str]:
    with file.open("rb") as stream:
        found: dict[Any, str] = gettext.GNUTranslations(stream)._catalog  # type: ignore[attr-defined]
    return {key: text for key, text in found.items() if key}


def names(key: Any) -> str:
    return str(key[0] if isinstance(key, tuple) else key)


def test_what_is_compiled_is_what_is_written() -> None:
    source = (FRENCH / "django.po").read_text()
    found = re.findall(rf"^msgid {_TEXT}", source, re.MULTILINE)
    written = {"".join(re.findall(r'"((?:[^"\\]|\\.)*)"', text)) for text in found} - {""}
    assert written == {names(key) for key in catalogue(FRENCH / "django.mo")}


def test_every_text_has_its_words_and_keeps_its_values() -> None:
    for key, text in catalogue(FRENCH / "django.mo").items():
        assert text
        assert set(re.findall(r"%\(\w+\)\w", text)) <= set(re.findall(r"%\(\w+\)\w", names(key))) | {"%(number)s"}, key
        assert text.count("<b>") == names(key).count("<b>")


def test_djangos_own_words_stay_djangos() -> None:
    """A catalogue of an app wins over Django's, on every page of the site."""
    ours = {names(key) for key in catalogue(FRENCH / "django.mo")}
    for app in ("conf", "contrib/admin"):
        theirs = catalogue(Path(django.__file__).parent / app / "locale/fr/LC_MESSAGES/django.mo")
        assert ours.isdisjoint(map(names, theirs)), app


@pytest.mark.django_db
def test_the_overview_speaks_french(admin_client: Client) -> None:
    with translation.override("fr"):
        body = admin_client.get("/admin/django_ojs/job/overview/").content.decode()
    for words in ("Vue d’ensemble", "Lettres mortes", "Tâches par minute, dernière heure", "En direct"):
        assert words in body
