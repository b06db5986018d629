"""The text and the picture of the command `goodput`."""
