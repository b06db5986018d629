"""From the log of a job to results: the calculator and its saved state."""
