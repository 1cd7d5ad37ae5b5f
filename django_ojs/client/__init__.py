"""Define jobs, enqueue them and ask for their state: the Python API of a site.

`definition` has `@job` and `enqueue`, `handle` the stored job that `enqueue` returns, `workflow` chains, groups and
batches, `context` what a handler gets. `options` translates Python values to the envelope, and `sync` copies the
schedules of `@job(cron=...)` into the database.
"""
