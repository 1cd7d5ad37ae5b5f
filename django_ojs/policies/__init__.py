"""The rules of the protocol as pure functions: wire form to values and back, no database."""
