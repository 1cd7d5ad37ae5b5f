"""The site's own worker. Read `process` first, then `claimer`, `pool`, `execution`, `outcomes` and `writer`.

A job's way: `claimer` fetches it, `pool` gives it a slot and makes it a `Run`, a runner in `runners` calls
its handler through `execution`, what comes out is one of the values in `outcomes`, and `writer` reports it.
"""
