"""The text, the picture and the file of exclusions of the command `goodput`."""
