"""What `manage.py ojs_demo` is made of.

`processes` starts the server and the worker and keeps them alive, `tether` makes them end when the demo does,
`load` enqueues jobs, `login` makes somebody who may look at them, `status` is the line that counts them.
"""
