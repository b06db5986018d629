"""The doctor: why a job waits, was retried, is slow, is stuck or failed, with proof; its logs, its hosts, a rehearsal.

    $ mldiagnostics doctor llama-7

Reading never touches the job. `doctor` has the same for programs and notebooks, and `verdict` its results.
"""

from ml_diagnostics_console._version import __version__

__all__ = ["__version__"]
