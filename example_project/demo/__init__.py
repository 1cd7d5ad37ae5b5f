"""What `manage.py ojs_demo` is made of.

`processes` starts the server and the worker and keeps them alive, `child` ends them when the demo ends, `load`
enqueues jobs, `login` makes the user who may look at them, and `status` is the line that counts them.
"""
