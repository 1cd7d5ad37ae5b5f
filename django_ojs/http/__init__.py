"""The HTTP binding translates between the wire and the verbs of `django_ojs.jobs`. It holds no rule of the protocol.

A request meets `base.OJSView` first: version, credentials, scope. Resources are ViewSets (`viewsets.OJSViewSet`) on one
router (`router`): `jobs`, `workers`, `queues` and others, each with its serializers. A ViewSet reads the body
(`body`, `serializers`, and `fields` on the fast calls) and the query (`filters`, `pagination`, `query`), calls one
operation and answers. Whatever goes wrong becomes an error of the spec in `exceptions`. What single clients need
beyond the spec is in `compat`.
"""
