"""Do what time and accidents demand of jobs; one process at a time does it for the whole site.

`scheduler` has the duties, the threads and the lease that says which process leads; `webhooks` sends deliveries.
`service` (threads, and a database that is away) is shared with the worker.
"""
