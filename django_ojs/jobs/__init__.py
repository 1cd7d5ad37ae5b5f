"""The verbs of the specification: what callers, workers, operators and time do to jobs.

Each verb takes many jobs as easily as one, in a constant number of statements, and writes the events of the change in
the same transaction. A function that takes many returns an outcome for each, in order: the row of the job, or the error
that refused it. Its `..._one` twin raises that error.
"""
