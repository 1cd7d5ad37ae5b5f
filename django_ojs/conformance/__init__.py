"""A runner for Open Job Spec conformance cases, in the published format and in the seed document's older one.

It knows nothing of Django: it speaks HTTP to a base URL and uses the standard library alone; only `site`, the
settings of the servers and workers that `servers` starts as processes, is Django's. `cases` loads and recognises a
case, `lint` says what in it is not understood, `published` and `seed` run one, `suite` spreads many over several
servers, `report` counts, and `claim` keeps what a passing run has shown. Matching lives in `matchers`,
`text_matchers` and `jsonpath`. Run it with `manage.py ojs_conformance --suites DIR`, or without Django against a
running server with `python -m django_ojs.conformance --suites DIR --target URL`.
"""
