"""The arguments of `diagnose`."""
