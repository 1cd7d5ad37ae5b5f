"""The life of a job: the arrows between its states, reservations, and who is told when it ends or may run.

It knows rows, statements and events, and nothing of what a caller can ask for: the verbs are above, in `jobs`.
"""
