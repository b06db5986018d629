"""Stack traces of training jobs that crash or hang, told even after a crash.

diagnostic        what a job calls: `diagnose`, `heartbeat`
collection        one block of `diagnose`: what it turns on, and off again
watchdog          faults, a signal and a timer, all from C: they work where Python is stuck
trace_file        the file that is written to, beside those of other processes
snapshot          the threads of this process, grouped, while Python can run
companion         the process that outlives the job: it ships the traces, sees hangs, and says how the job ended
hang              when a job that makes no progress is taken for stuck
traces, grouping  what was dumped, read again: equal stacks together
stacks            the command `tpu-stacks`
run               the command `python -m cloud_tpu_diagnostics run -- CMD`
"""

from cloud_tpu_diagnostics._version import __version__

__all__ = ["__version__"]
