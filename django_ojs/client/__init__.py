"""The Python API: how code of the site defines jobs, enqueues them and asks what became of them.

`definition` is `@job` and what it makes of a function. `options` turns the words of Python (a timedelta, an
aware datetime) into those of the envelope, `arguments` refuses what JSON cannot carry, `enqueueing` hands
documents to `operations.push`, and `handle` is what comes back.
"""
