"""The process beside the job that outlives it."""
