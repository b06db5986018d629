"""The first module of each Python of a simulated pod: passes `jax.distributed.initialize()` what a cluster would give.

The folder of this file is first on PYTHONPATH of the pod. So it works for `python train.py`, for a module, and where a
shell or another program starts Python. It needs the standard library alone, since the pod's Python may be another one
than that of `simulate`, and it never fails: then the program runs as if it were not there.

ML_DIAGNOSTICS_SIMULATION is a JSON object: `index` and `count` of the process, `address` of the coordinator, `names` of
the pods as texts that the address may have as its host, and `folder`, for one file a call that has its arguments.
"""

from __future__ import annotations

import json
import os
import sys

TYPE_CHECKING = False  # As in `typing`, which would make each start of Python slower.
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

_VARIABLE = "ML_DIAGNOSTICS_SIMULATION"
_MODULE = "jax.distributed"


def _main() -> None:
    _run_next_sitecustomize()
    try:
        simulation = json.loads(os.environ[_VARIABLE])
    except (KeyError, ValueError):
        return
    sys.meta_path.insert(0, _Finder(simulation))
    if simulation.get("may_exit"):
        _wait_for_exit(simulation["folder"])


def _run_next_sitecustomize() -> None:
    """Run the module that this one hides, if there is one."""
    from importlib.machinery import PathFinder
    from importlib.util import module_from_spec

    here = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120
    folders = [folder for folder in sys.path if os.path.abspath(folder) != here]  # noqa: PTH100
    spec = PathFinder.find_spec("sitecustomize", folders)
    if spec is not None and spec.loader is not None:
        sys.modules["sitecustomize"] = module = module_from_spec(spec)
        spec.loader.exec_module(module)


class _Finder:
    """Changes the module once, right after its import."""

    def __init__(self, simulation: dict[str, Any]) -> None:
        self._simulation: dict[str, Any] | None = simulation

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        simulation = self._simulation
        if name != _MODULE or simulation is None:
            return None
        from importlib.util import find_spec

        self._simulation = None  # The next line asks all finders, and this one must not find it again.
        spec = find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        load = spec.loader.exec_module

        def exec_module(module: Any) -> None:
            load(module)
            if hasattr(module, "initialize"):
                module.initialize = _launching(module.initialize, simulation)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _launching(initialize: Callable[..., Any], simulation: dict[str, Any]) -> Callable[..., Any]:
    """Return `jax.distributed.initialize` with the arguments that the program leaves out."""
    import functools
    import inspect

    signature = inspect.signature(initialize)

    @functools.wraps(initialize)
    def launch(*arguments: Any, **options: Any) -> Any:
        try:
            bound = signature.bind_partial(*arguments, **options).arguments
        except TypeError:
            return initialize(*arguments, **options)  # Its own error is the best one.
        given = {name: value for name, value in bound.items() if value is not None}
        is_bare = "num_processes" not in given and "process_id" not in given
        if is_bare:
            given.pop("cluster_detection_method", None)
            given |= {"num_processes": simulation["count"], "process_id": simulation["index"]}
        address = given.get("coordinator_address")
        is_replaced = isinstance(address, str) and _names_a_pod(address, simulation["names"])
        if is_replaced or (is_bare and address is None):
            given["coordinator_address"] = simulation["address"]
        _report(simulation, given, is_bare=is_bare, replaced=address if is_replaced else None)
        return initialize(**given)

    return launch


def _names_a_pod(address: str, names: list[str]) -> bool:
    host = address.rpartition(":")[0] or address
    return any(host == name or host.startswith(f"{name}.") for name in names)


def _report(simulation: dict[str, Any], given: dict[str, Any], *, is_bare: bool, replaced: str | None) -> None:
    """Leave a file for `simulate`."""
    path = os.path.join(simulation["folder"], f"initialize-{os.getpid()}")  # noqa: PTH118
    values = {
        "pod": simulation["pod"],
        "pid": os.getpid(),
        "count": given.get("num_processes"),
        "index": given.get("process_id"),
        "is_bare": is_bare,
        "replaced": replaced,
    }
    try:
        with open(f"{path}.part", "w", encoding="utf-8") as file:  # noqa: PTH123
            json.dump(values, file, default=str)
        os.replace(f"{path}.part", f"{path}.json")  # noqa: PTH105
    except OSError:
        pass


def _wait_for_exit(folder: str) -> None:
    """Call `os._exit` when `simulate` opens the pipe of this process: the fault `exit`."""
    import _thread

    path = os.path.join(folder, f"exit-{os.getpid()}")  # noqa: PTH118

    def wait() -> None:
        os.mkfifo(path, 0o600)
        with open(path, "rb") as pipe:  # noqa: PTH123
            code = pipe.read(4)
        os._exit(int(code or b"0"))

    _thread.start_new_thread(wait, ())


try:
    _main()
except Exception as error:
    print(f"simulate: the launcher of this Python failed, and changes nothing: {error!r}", file=sys.stderr)
