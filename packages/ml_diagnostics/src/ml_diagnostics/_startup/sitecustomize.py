"""Start the inference of goodput in a Python program of a job, then the environment's own `sitecustomize`.

`ml-diagnostics run` puts the folder of this file first on PYTHONPATH. Python imports `sitecustomize` before the program
starts, and any Python may find this one, also another version or one without our packages: so it needs nothing, and
whatever fails here is ignored. It leaves `sys.path` as if it had never been there.
"""

import os
import sys

_FRAMEWORKS = ("jax", "torch")
_RANKS = ("RANK", "JAX_PROCESS_ID", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK")


class _NotInstalled:
    """Report, when the program imports a framework, that this Python does not have our package."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name in _FRAMEWORKS:
            sys.meta_path.remove(self)
            # Its own children run in the same Python.
            kept = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path != self._folder]
            os.environ["PYTHONPATH"] = os.pathsep.join(kept)
            if all(os.environ.get(rank, "0") == "0" for rank in _RANKS):
                text = "ml-diagnostics: %s has no ml-diagnostics installed: the program runs without it\n"
                try:
                    os.write(2, (text % sys.executable).encode("utf-8", "backslashreplace"))
                except OSError:
                    pass


def _start() -> None:
    folder = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 (pathlib takes 3 ms to import)
    sys.path[:] = [path for path in sys.path if path != folder]
    try:
        from ml_diagnostics._inference import startup

        startup.start(folder)
    except ImportError:
        sys.meta_path.insert(0, _NotInstalled(folder))
    except Exception:
        pass


def _run_next() -> None:
    """Run the `sitecustomize` that Python would have found without this one; its errors pass, as they would have."""
    from importlib.machinery import PathFinder

    spec = PathFinder.find_spec("sitecustomize")
    if spec is None or spec.loader is None or not hasattr(spec.loader, "exec_module"):
        return
    from importlib.util import module_from_spec

    module = sys.modules["sitecustomize"] = module_from_spec(spec)
    spec.loader.exec_module(module)


_start()
_run_next()
