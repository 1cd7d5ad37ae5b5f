-- Committed events get their places in the log.

-- Nothing is sent.
