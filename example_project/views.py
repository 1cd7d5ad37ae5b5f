"""The reports that the jobs write, to look at while DEBUG is on."""

from __future__ import annotations

from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render

from example_project import paths


def reports(request: HttpRequest) -> HttpResponse:
    """All of them, newest first."""
    files = sorted((paths.DATA_DIR / "reports").glob("*.html"), key=lambda file: file.stat().st_mtime, reverse=True)
    return render(request, "example_project/reports.html", {"packages": [file.stem for file in files]})


def report(request: HttpRequest, package: str) -> HttpResponse:
    try:
        return HttpResponse((paths.DATA_DIR / "reports" / f"{package}.html").read_bytes())
    except FileNotFoundError:
        raise Http404("There is no report on this package.") from None
