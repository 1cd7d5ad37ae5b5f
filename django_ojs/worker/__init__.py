"""Run the site's jobs. Read `process` first, then `claimer`, `pool`, `execution`, `outcomes` and `writer`.

The way of a job: `claimer` fetches it, `pool` gives it a slot and makes it a `Run`, a runner in `runners` calls its
handler through `execution`, the end of that becomes one of the values in `outcomes`, and `writer` reports it.
"""
