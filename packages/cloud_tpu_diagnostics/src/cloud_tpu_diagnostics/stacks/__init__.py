"""The command `tpu-stacks`."""
