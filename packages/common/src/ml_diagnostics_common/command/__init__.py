"""The parts of a command line program. Only commands import this package, never a library inside of a training job."""
