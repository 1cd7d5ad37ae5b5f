"""How many jobs there are, how fast they go through, how long they wait and what fails, for every interface alike.

The HTTP binding, `/metrics`, the admin and the commands ask these modules, so that one question has one answer:

- `counters`: jobs by queue and state, exact;
- `throughput`: jobs started, completed and failed by the minute, and the rates made of them;
- `latency`: how long jobs wait, what came in, and how queues share the starts;
- `history`: the same over days;
- `failures`: what fails most;
- `eventcounts`, `webhookcounts`: what the metrics count;
- `summary`: the few numbers of the whole installation, and values that all callers of a process share.
"""
