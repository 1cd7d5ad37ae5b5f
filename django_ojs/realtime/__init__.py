"""Events as they happen: one reader of the log for each process, and the WebSocket binding (events 3)."""
