"""Stack traces of training jobs that crash or hang, recorded even after a crash.

    from cloud_tpu_diagnostics import diagnose

    with diagnose(stack_traces=True, hangs=True, directory="stacks"):
        run_job(...)

A name is imported when it is first used.

diagnostic      the functions that a job calls: `diagnose`, `heartbeat`
configuration   the arguments of `diagnose`
entries         the keys of what is written to the log
exceptions      the errors
src             second names, which programs for the public package import
_config         the checked configuration of a block
_collect        a block of `diagnose` in the job's process
_companion      the process that outlives the job: it ships traces, detects hangs and records the exit reason
_fast_fail      the companions of a job, which end it once one of its processes has failed
_dumps          dumps of stacks: written, parsed, and grouped by equal stack
_stacks         the command `tpu-stacks`
__main__        the command `python -m cloud_tpu_diagnostics run -- CMD`
"""

from cloud_tpu_diagnostics._version import __version__

TYPE_CHECKING = False  # Not imported from typing: that takes 8 ms, in which Ctrl-C in a command prints a traceback.
if TYPE_CHECKING:
    from typing import Any

    from cloud_tpu_diagnostics.diagnostic import diagnose, heartbeat

__all__ = ["__version__", "diagnose", "heartbeat"]


def __getattr__(name: str) -> "Any":
    if name in ("diagnose", "heartbeat"):
        from cloud_tpu_diagnostics import diagnostic

        value = globals()[name] = getattr(diagnostic, name)
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
