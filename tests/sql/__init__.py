"""The SQL of the hot path as it is sent, one file for each call and database."""
