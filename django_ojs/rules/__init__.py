"""Pure functions that decide what the specification says, without a database: wire form to values, and back."""
