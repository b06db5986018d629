"""From the log of a job to answers: the calculator and its saved state."""
