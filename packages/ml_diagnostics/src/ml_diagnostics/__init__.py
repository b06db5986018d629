"""One call around a training loop: where its time goes, what it did, and why it hangs.

    import ml_diagnostics

    with ml_diagnostics.instrument("digits", config={"lr": 1e-3}) as job:
        for step, batch in job.steps(data):
            state, loss = train_step(state, batch)
            job.log({"loss": loss}, step=step)

A name is imported when it is first used, and the libraries that do the work when a job starts.
"""

from ml_diagnostics._version import __version__

TYPE_CHECKING = False  # Not imported from typing: that alone takes longer than the rest of this module.
if TYPE_CHECKING:
    from typing import Any

    from ml_diagnostics._job import Job, current, instrument

__all__ = ["Job", "__version__", "current", "instrument"]


def __getattr__(name: str) -> "Any":
    if name in __all__:
        from ml_diagnostics import _job

        value = globals()[name] = getattr(_job, name)
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__


def load_ipython_extension(shell: "Any") -> None:
    """Add `%%instrument`, `%goodput`, `%mlrun` and `%stacks` to a notebook, for `%load_ext ml_diagnostics`.

    Args:
        shell: IPython's shell.
    """
    from ml_diagnostics._notebook import register

    register(shell)
