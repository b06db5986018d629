"""From a value to an entry of the run's log: what JSON takes of it, the wait for a device, averages, the journal."""
