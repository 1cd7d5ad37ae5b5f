"""Workflows: create, read, cancel and retry them, and take them further when their jobs end."""
