"""What a job gives to `diagnose`."""
