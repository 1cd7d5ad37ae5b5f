"""The event log: which types there are, how events are written and put in order, and how readers get them."""
