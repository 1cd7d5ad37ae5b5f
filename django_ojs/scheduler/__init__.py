"""What time and accidents do to jobs, done by one process at a time for the whole site.

`lease` decides who leads, `loops` are the things to do, `looper` does several of them in one thread, and
`scheduler` puts them together. `service` and `outage` are shared with the worker.
"""
