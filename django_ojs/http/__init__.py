"""The HTTP binding: it translates between the wire and `django_ojs.operations`, and holds no rule of the protocol.

A request meets `base.OJSView` first: version, credentials, scope. The view of its resource (`jobs`, `workers`,
`queues`, `deadletter`, `events`, `health`, `manifest`) reads the body through `body`, single values through
`fields` and `query`, calls one operation and answers with envelopes. Whatever goes wrong becomes an error of
the spec in `exceptions`. What single clients need beyond the spec is in `compat`.
"""
