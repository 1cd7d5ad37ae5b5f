"""Schedules (cron): the rows, the tick that fires them, and what happens when runs overlap."""
