"""The verbs of the spec, one a file: the only code that changes a job's state.

Each takes many jobs as easily as one, in a constant number of statements, and writes the events of the
change in the same transaction. A function that takes many returns an outcome for each, in order: the
job's row, or the error that refused it. Its `..._one` twin raises that error.
"""
