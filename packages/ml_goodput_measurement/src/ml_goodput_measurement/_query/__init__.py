"""Queries of a job's log: the calculator and its saved state."""
