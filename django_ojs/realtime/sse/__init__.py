"""Server-Sent Events (events 4): one HTTP answer that does not end, for browsers and for clients that only listen."""
