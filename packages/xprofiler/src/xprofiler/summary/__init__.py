"""The summary of a profile: steps, utilization, operations and input, read with XProf's converters."""
