"""`manage.py ojs_bench --soak MINUTES`: a steady mixed load on a worker for as long as you like, added up exactly.

`load` pushes and notes what it was promised, the `ledger` adds up what became of it by the event log, `gauges`
looks at memory, connections and tables meanwhile, `audit` compares with the rows and counters at the end. Jobs and
events are pruned within two minutes, so that tables stay flat; nothing is lost to the sum, because the ledger reads the
log as any reader does and long before it is pruned. Whatever it misses is a fault, and so is what it sees twice.
"""
