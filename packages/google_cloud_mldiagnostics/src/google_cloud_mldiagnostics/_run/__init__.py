"""The life of a run in this process: arguments, start, entries and end."""
