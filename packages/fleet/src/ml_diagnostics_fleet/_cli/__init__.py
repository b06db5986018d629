"""The command `goodput fleet`: its parts, and their output."""
