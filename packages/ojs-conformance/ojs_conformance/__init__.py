"""Runs Open Job Spec conformance cases, in the published format and in the seed document's older one.

It speaks HTTP to a base URL and uses the standard library alone, so a server in any language can be tested; over gRPC
it borrows the messages of django-ojs. `cases` loads and recognises a case, `lint` says what in it is not understood,
`running` runs one, step by step with `exchange`, and `suite` spreads many over several servers. `matchers` and
`jsonpath` compare. `report` counts, and `claim` says what a passing run has shown.

    ojs_conformance --suites DIR --target URL

`djangoapp` is a Django app with `manage.py ojs_conformance`, which starts test servers of django-ojs of its own.
"""

__version__ = "0.1.0"
