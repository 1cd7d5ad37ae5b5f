"""The site of a conformance run: the test servers, and workers with the nine standard handlers."""
