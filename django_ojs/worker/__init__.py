"""Run the site's jobs. Read `process` first, then `claimer`, `pool`, `execution`, `runs` and `writer`.

The way of a job: `claimer` fetches it, `pool` gives it a slot and a `JobRun`, a runner in `execution` calls its
handler, the end of that becomes one of the outcomes in `runs`, and `writer` reports it. `keepalive` keeps the worker's
jobs reserved, `lifecycle` has the orders that it obeys, and `supervisor` starts its processes again when they end.
"""
