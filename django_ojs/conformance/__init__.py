"""A runner for Open Job Spec conformance cases, in the published format and in the seed document's older one.

It knows nothing of Django: it speaks HTTP to a base URL and uses the standard library alone; only `site`, the
settings of the servers and workers that `servers` starts as processes, is Django's. `cases` loads and recognises a
case, `lint` says what in it is not understood, `running` runs one, step by step with `exchange`, and `suite` spreads
many over several servers. `matchers` and `jsonpath` compare. `report` counts, and `claim` keeps what a passing run has
shown. Run it with `manage.py ojs_conformance --suites DIR`, or without Django against a running server with
`python -m django_ojs.conformance --suites DIR --target URL`.
"""
