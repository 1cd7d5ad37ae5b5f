"""`python -m benchmarks.faults`: a worker, a scheduler and the servers through every fault of `django_ojs.faults`.

`site` runs the processes and the clients, which push, read and stream; `injection` lets the statements of the processes
fail below Django, with the exception of the driver and where possible that of the server; `record` adds up what was
promised and what was done; `__main__` goes through the table and prints it.
"""
