"""Select jobs, act on one or on many of them as operators do, and count: what of the verbs has no folder of its own."""
