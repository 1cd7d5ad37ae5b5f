"""The tenants of a site of django-tenants: each has a schema of its own."""
