"""The documentation: `python -m sphinx -W --keep-going -b html docs docs/_build/html`."""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import django_ojs  # noqa: E402 - once it can be found

project = "django-ojs"
author = "the authors of django-ojs"
release = version = django_ojs.__version__

extensions = ["myst_parser", "ojsdocs.extension"]
exclude_patterns = ["_build"]

myst_heading_anchors = 4
myst_enable_extensions = ["deflist"]
myst_links_external_new_tab = True
highlight_language = "text"
smartquotes = False  # messages and values are shown as they are
default_role = "code"

html_theme = "furo"
html_title = f"django-ojs {release}"
