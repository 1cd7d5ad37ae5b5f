"""The HTTP binding translates between the wire and the verbs of `django_ojs.jobs`. It holds no rule of the protocol.

A request meets `base.OJSView` first: version, credentials, scope. Resources are ViewSets (`base.OJSViewSet`) on one
router (`router`): `jobs`, `workers`, `queues` and others, each with its serializers, which also are what the OpenAPI
document is made of (`openapi`, `inspector`, `parameters`). A ViewSet reads the body (`body`, `serializers`, and
`fields` on the fast calls) and the query (`filters`, `pagination`, `query`), calls one operation and answers. What goes
wrong becomes an error of the spec in `exceptions`. What single clients need beyond the spec is in `compat`.
"""
