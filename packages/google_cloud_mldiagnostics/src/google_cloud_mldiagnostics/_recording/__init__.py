"""Recording: values become entries of the run's log, by conversion to JSON, the wait for a device, and averages."""
