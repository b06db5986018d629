"""XSpaces as a TPU or a GPU host writes them, so that no test needs such a host.

The fields are those of tsl/profiler/protobuf/xplane.proto.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ml_diagnostics_testing._xspace import message

Stat = str | int | float

_US = 1_000_000  # picoseconds
_BEGIN_NS = 1_795_292_000_000_000_000


class _Plane:
    """An XPlane; names of events and statistics are numbered in order of use."""

    def __init__(self, number: int, name: str, stats: Mapping[str, Stat] | None = None) -> None:
        self._number, self._name = number, name
        self._events: dict[str, bytes] = {}
        self._stat_ids: dict[str, int] = {}
        self._lines: list[bytes] = []
        self._stats = self._encoded(6, stats or {})

    def _encoded(self, field: int, stats: Mapping[str, Stat]) -> bytes:
        out = b""
        for name, value in stats.items():
            identifier = self._stat_ids.setdefault(name, len(self._stat_ids) + 1)
            stat = message((1, identifier))
            if isinstance(value, float):
                stat += bytes([2 << 3 | 1]) + struct.pack("<d", value)  # A fixed64 field, which `message` lacks.
            else:
                stat += message((5 if isinstance(value, str) else 4, value))
            out += message((field, stat))
        return out

    def event(
        self, name: str, start_ps: int, end_ps: int, stats: Mapping[str, Stat] | None = None, **of_all: Stat
    ) -> bytes:
        """One event; `of_all` are statistics of every event of this name."""
        if name not in self._events:
            number = len(self._events) + 1
            self._events[name] = message((1, number), (2, name), (4, name)) + self._encoded(5, of_all)
        number = list(self._events).index(name) + 1
        return message((1, number), (2, start_ps), (3, end_ps - start_ps)) + self._encoded(4, stats or {})

    def line(self, number: int, name: str, start_ns: int, events: Iterable[bytes]) -> None:
        self._lines.append(message((1, number), (2, name), (3, start_ns), *((4, event) for event in events)))

    def encode(self) -> bytes:
        out = message((1, self._number), (2, self._name), *((3, line) for line in self._lines))
        for number, metadata in enumerate(self._events.values(), 1):
            out += message((4, message((1, number), (2, metadata))))
        for name, number in self._stat_ids.items():
            out += message((5, message((1, number), (2, message((1, number), (2, name))))))
        return out + self._stats


@dataclass(frozen=True)
class Operation:
    """Operations that run once in each step.

    Attributes:
        name: The name in HLO.
        category: The category in HLO.
        duration_us: The duration of one run.
        flops: The floating-point operations of one run.
        bytes_accessed: The memory traffic of one run.
    """

    name: str
    category: str
    duration_us: int
    flops: int = 0
    bytes_accessed: int = 0


OPERATIONS = (
    Operation("%infeed.1", "infeed", 60),
    Operation("%convolution.7", "convolution", 420, 40_000_000_000, 30_000_000),
    Operation("%fusion.21", "convolution fusion", 260, 18_000_000_000, 60_000_000),
    Operation("%fusion.4", "loop fusion", 140, 90_000_000, 90_000_000),
    Operation("%all-reduce.3", "all-reduce", 110, 1_000_000, 20_000_000),
    Operation("%copy.2", "data formatting", 30, 0, 12_000_000),
)


def tpu_host(
    *,
    host: str = "t1v-n-0",
    devices: int = 4,
    first_device: int = 0,
    steps: int = 12,
    operations: Sequence[Operation] = OPERATIONS,
    idle_us: int = 180,
    extra_us: Mapping[int, int] | None = None,
    first_step: int | None = None,
) -> bytes:
    """The XSpace of one TPU host.

    Args:
        host: Its name.
        devices: The number of its chips.
        first_device: The number of the first.
        steps: The number of captured steps.
        operations: The operations of each step, in order.
        idle_us: The time that each device waits between steps.
        extra_us: The additional time of the first operation of each step.
        first_step: If given, the program's thread marks its steps, from this number on, and is in the region
            `load_batch` while the devices wait.
    """
    planes = []
    marked: list[tuple[int, int, int]] = []
    for device in range(devices):
        plane = _Plane(
            device + 1,
            f"/device:TPU:{first_device + device}",
            {
                "device_type_string": "TPU v5p",
                "peak_teraflops_per_second": 459.0,
                "peak_hbm_bw_gigabytes_per_second": 2765.0,
                "global_chip_id": first_device + device,
                "core_details": "",
            },
        )
        at = 0
        of_steps, of_modules, of_operations = [], [], []
        for step in range(steps):
            start = at
            for operation in operations:
                longer = (extra_us or {}).get(step, 0) if operation is operations[0] else 0
                duration = (operation.duration_us + longer) * _US
                of_operations.append(
                    plane.event(
                        f"{operation.name} = bf16[1024,1024]{{1,0}} {operation.category}()",
                        at,
                        at + duration,
                        {"run_id": step, "group_id": step},
                        hlo_category=operation.category,
                        program_id=7,
                        symbol_id=list(operations).index(operation) + 1,
                        flops=operation.flops,
                        model_flops=operation.flops,
                        bytes_accessed=operation.bytes_accessed,
                        tf_op=f"jit(train)/{operation.category.replace(' ', '_')}",
                    )
                )
                at += duration
            of_modules.append(plane.event("jit_train(7)", start, at, {"run_id": step, "group_id": step}, program_id=7))
            of_steps.append(plane.event(str(step), start, at + idle_us * _US, {"group_id": step, "step_num": step}))
            marked += [(start, at, at + idle_us * _US)] if device == 0 else []
            at += idle_us * _US
        plane.line(1, "Steps", _BEGIN_NS, of_steps)
        plane.line(2, "XLA Modules", _BEGIN_NS, of_modules)
        plane.line(3, "XLA Ops", _BEGIN_NS, of_operations)
        planes.append(plane)
    if first_step is not None:
        planes.append(_program(devices + 1, first_step, marked))
    return message(*((1, plane.encode()) for plane in planes), (4, host))


def _program(number: int, first_step: int, steps: Sequence[tuple[int, int, int]]) -> _Plane:
    """The plane of a thread that marks steps; each has its start, the start of its loading, and its end."""
    plane = _Plane(number, "/host:CPU")
    events = []
    for step_num, (start, loads, end) in enumerate(steps, first_step):
        events.append(plane.event("train", start, end, {"_r": 1, "step_num": step_num}))
        events.append(plane.event("load_batch", loads, end))
    plane.line(1, "python", _BEGIN_NS, events)
    return plane


def gpu_host(
    *, host: str = "gpu-0", devices: int = 2, runs: int = 10, operations: Sequence[Operation] = OPERATIONS
) -> bytes:
    """The XSpace of one GPU host: its kernels, on one stream of each device, and no steps."""
    planes = []
    for device in range(devices):
        plane = _Plane(device + 1, f"/device:GPU:{device}")
        at, kernels = 0, []  # type: ignore[var-annotated]
        for _ in range(runs):
            for operation in operations:
                stats: dict[str, Stat] = {
                    "correlation_id": len(kernels),
                    "hlo_op": operation.name,
                    "tf_op": f"jit(train)/{operation.category.replace(' ', '_')}",
                    "kernel_details": "regs:32 static_shared:0 dynamic_shared:0 grid:1,1,1 block:128,1,1 occ_pct:50",
                }
                end = at + operation.duration_us * _US
                kernels.append(plane.event(f"kernel_{operation.name[1:]}", at, end, stats))
                at = end
        plane.line(13, "Stream #13(Compute)", _BEGIN_NS, kernels)
        planes.append(plane)
    return message(*((1, plane.encode()) for plane in planes), (4, host))
