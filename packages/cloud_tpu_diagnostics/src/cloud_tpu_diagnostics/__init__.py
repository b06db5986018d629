"""Stack traces of training jobs that crash or hang, recorded even after a crash.

diagnostic      the functions that a job calls: `diagnose`, `heartbeat`
configuration   the arguments of `diagnose`
entries         the keys of what is written to the log
exceptions      the errors
src             second names, which programs for the public package import
_config         the checked configuration of a block
_collect        a block of `diagnose` in the job's process
_companion      the process that outlives the job: it ships traces, detects hangs and records the exit reason
_dumps          dumps of stacks: written, parsed, and grouped by equal stack
_stacks         the command `tpu-stacks`
__main__        the command `python -m cloud_tpu_diagnostics run -- CMD`
"""

from cloud_tpu_diagnostics._version import __version__

__all__ = ["__version__"]
