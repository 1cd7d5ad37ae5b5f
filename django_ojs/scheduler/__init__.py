"""Do what time and accidents demand of jobs; one process at a time does it for the whole site.

`scheduler` starts the threads and decides which process leads, `duties` are the things to do, and `webhooks` sends
deliveries. `service` (threads) and `outage` (a database that is away) are shared with the worker.
"""
