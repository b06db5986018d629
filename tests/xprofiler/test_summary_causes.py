"""The first line of a summary names what limits the job: six jobs of real JAX on the CPU with a known cause."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from xprofiler.summary.cause import cause_of, slow_host_of
from xprofiler.summary.host_operations import joined, overlaid
from xprofiler.summary.host_time import HostStep, HostTime, Label, host_time
from xprofiler.summary.summary import ActivityKind, Host
from xprofiler.summary.xspace import Plane, read_planes

from ..waiting import free_port
from .captures import capture_command
from .typed_commands import typed
from .xspaces import tpu_host

ProfileData = pytest.importorskip("xprof.profile_data").ProfileData
pytest.importorskip("jax", minversion="0.10")  # Older ones mark no operations on the CPU.

_FIRST_STEP = 100
_JOBS = """
import pathlib, sys, time
import jax, jax.numpy as jnp
import numpy as np
from ml_diagnostics_common.worker import Worker

step = jax.jit(lambda x: jnp.tanh(x @ x) / 8)
small, large = jnp.ones((64, 64)), jnp.ones((700, 700))
step(small).block_until_ready(), step(large).block_until_ready()

def computing(number):
    x = large
    for _ in range(4):
        x = step(x)
    x.block_until_ready()

def loading(number):
    with jax.profiler.TraceAnnotation("load_batch"):
        time.sleep(0.05)
    step(small).block_until_ready()

def sleeping(number):
    time.sleep(0.05)
    step(small).block_until_ready()

def recompiling(number):
    jax.jit(lambda x: jnp.tanh(x @ x) / (number + 1))(small).block_until_ready()

def fetching(number):
    losses = jax.device_get([small] * 500)
    np.asarray(step(small))

for job in (computing, loading, sleeping, recompiling, fetching):
    job(99)
    jax.profiler.start_trace(f"{sys.argv[1]}/{job.__name__}")
    for number in range(100, 106):
        with jax.profiler.StepTraceAnnotation("train", step_num=number):
            job(number)
    jax.profiler.stop_trace()

options = jax.profiler.ProfileOptions()
options.python_tracer_level = 0
jax.profiler.start_trace(f"{sys.argv[1]}/untraced_sleep", profiler_options=options)
for number in range(100, 106):
    with jax.profiler.StepTraceAnnotation("train", step_num=number):
        sleeping(number)
jax.profiler.stop_trace()

jax.profiler.start_trace(f"{sys.argv[1]}/loading_between_steps")
for number in range(100, 106):
    with jax.profiler.StepTraceAnnotation("train", step_num=number):
        step(small).block_until_ready()
    with jax.profiler.TraceAnnotation("load_batch"):
        time.sleep(0.05)
jax.profiler.stop_trace()

jax.profiler.start_trace(f"{sys.argv[1]}/no_steps")
for number in range(6):
    loading(number)
jax.profiler.stop_trace()

helper = Worker("helper", lambda: 0.01)
helper.start()
jax.profiler.start_trace(f"{sys.argv[1]}/helper_thread")
for number in range(6):
    sleeping(number)
jax.profiler.stop_trace()
helper.stop()
helper.wait(10)
"""
_SERVED_JOB = """
import sys, threading, time
import jax

port = int(sys.argv[2])
step = jax.jit(lambda x: x @ x / 100)
x = jax.numpy.ones((50, 50))
step(x).block_until_ready()
jax.profiler.start_server(port)
print(port, flush=True)
is_over = threading.Event()
threading.Thread(target=lambda: (sys.stdin.read(), is_over.set()), daemon=True).start()
number = 0
while not is_over.is_set():
    with jax.profiler.StepTraceAnnotation("train", step_num=number):
        time.sleep(float(sys.argv[1]))
        step(x).block_until_ready()
    number += 1
"""


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the profile of each job, by its name."""
    logs = tmp_path_factory.mktemp("jobs")
    ended = subprocess.run(
        [sys.executable, "-c", _JOBS, str(logs)],
        env={**os.environ, "JAX_PLATFORMS": "cpu", "JAX_ENABLE_COMPILATION_CACHE": "false"},
        capture_output=True,
        timeout=100,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr.decode()
    return logs


def _first_line(logs: Path) -> str:
    ended = typed("summary", str(logs))
    assert ended.code == 0, ended.errors
    assert "input-bound" not in ended.output.lower()
    return ended.output.splitlines()[0]


def _durations_ns(logs: Path, name: str) -> list[int]:
    """Return the durations of the events of a name, in their order, as XProf's own reader has them."""
    (file,) = logs.rglob("*.xplane.pb")
    profile = ProfileData.from_file(str(file))  # Its planes do not outlive it.
    events = [event for plane in profile.planes for line in plane.lines for event in line.events if event.name == name]
    return [event.duration_ns for event in sorted(events, key=lambda event: event.start_ns)]


def _json(logs: Path) -> dict[str, Any]:
    ended = typed("summary", str(logs), "--format", "json")
    assert ended.code == 0, ended.errors
    found: dict[str, Any] = json.loads(ended.output)
    return found


@pytest.mark.parametrize(
    ("job", "expected"),
    [
        ("computing", r"compute-bound: XLA operations ran for [\d.]+ % of the step"),
        ("loading", r"load_batch takes [\d.]+ % of the step"),
        ("sleeping", r"the host was in no annotated region for [\d.]+ % of the step; Python was in time\.sleep for .*"),
        ("untraced_sleep", r"the host was in no annotated region for [\d.]+ % of the step"),
        ("recompiling", r"compilation takes [\d.]+ % of the step \(6 compilations, [\d.]+ m?s\)"),
        ("fetching", r"transfers between host and device take [\d.]+ % of the step: device_get [\d.]+ %"),
        ("loading_between_steps", r"load_batch takes [\d.]+ % of the step"),
        ("no_steps", r"load_batch takes [\d.]+ % of the profile"),
        (
            "helper_thread",
            r"the host was in no annotated region for [\d.]+ % of the profile; Python was in time\.sleep for .*",
        ),
    ],
)
def test_the_first_line_names_the_cause(jobs: Path, job: str, expected: str) -> None:
    assert re.fullmatch(expected, _first_line(jobs / job))


def test_the_regions_transfers_and_compilations_are_in_the_json(jobs: Path) -> None:
    loading = _json(jobs / "loading")
    (region,) = [each for each in loading["activities"] if each["name"] == "load_batch"]
    assert (region["kind"], region["runs"]) == ("annotation", 6)
    loads_ns, steps_ns = (_durations_ns(jobs / "loading", name) for name in ("load_batch", "train"))
    assert region["percent"] == pytest.approx(100 * sum(loads_ns) / sum(steps_ns), abs=0.1)
    assert loading["headline"] == loading["cause"]["text"]
    assert (loading["cause"]["kind"], loading["compilations"], loading["slow_host"]) == ("annotation", None, None)
    assert sum(loading["time_percent"].values()) == pytest.approx(100)
    compilations = _json(jobs / "recompiling")["compilations"]
    assert compilations["count"] == 6
    assert compilations["seconds"] > 0
    assert 50 < compilations["percent"] <= 100
    transfers = {each["name"] for each in _json(jobs / "fetching")["activities"] if each["kind"] == "transfer"}
    assert "device_get" in transfers


def test_steps_carry_the_numbers_that_the_program_gave_them_and_all_are_there(jobs: Path) -> None:
    steps = _json(jobs / "loading")["steps"]
    assert [step["name"] for step in steps] == [str(_FIRST_STEP + number) for number in range(6)]
    for step, load_ns in zip(steps, _durations_ns(jobs / "loading", "load_batch"), strict=True):
        assert sum(step["parts_us"].values()) == pytest.approx(step["duration_us"], rel=0.01)
        assert step["parts_us"]["Annotated regions"] == pytest.approx(load_ns / 1e3, rel=0.01)


def test_no_conclusion_of_xprof_is_shown_without_its_measurements(jobs: Path) -> None:
    found = _json(jobs / "loading")
    assert found["input"] == {"conclusion": "", "waiting_percent": None, "parts_us": {}}
    assert sorted(found["tools"]) == ["graph_viewer", "memory_viewer", "overview_page", "trace_viewer@"]


def test_the_picture_is_titled_with_the_cause(jobs: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    ended = typed("summary", str(jobs / "loading"), "--plot", str(tmp_path / "p.svg"))
    assert ended.code == 0, ended.errors
    assert re.search(r"<!-- load_batch takes [\d.]+ % of the step", (tmp_path / "p.svg").read_text())


@contextlib.contextmanager
def _hosts(step_seconds: Sequence[float]) -> Iterator[list[int]]:
    """JAX jobs with a profiler server, by their ports."""
    processes = [
        subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", _SERVED_JOB, str(seconds), str(free_port())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, "JAX_PLATFORMS": "cpu"},
        )
        for seconds in step_seconds
    ]
    try:
        yield [int(process.stdout.readline()) for process in processes if process.stdout is not None]
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def test_the_slow_host_of_four_is_named_in_the_first_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with _hosts((0.05, 0.05, 0.2, 0.05)) as ports:
        targets = [f"localhost:{port}" for port in ports]
        captured = capture_command(capsys)("-o", "local", "-n", *targets, "-d", "1500", "-l", tmp_path)
    assert captured.code == 0, captured.errors
    slow = f"localhost_{ports[2]}"
    first = _first_line(tmp_path)
    assert re.match(
        rf"host {slow} takes \d\.\d times as long as the others; there, the host was in no annotated region", first
    )
    found = _json(tmp_path)
    assert found["slow_host"]["host"] == slow
    assert found["slow_host"]["ratio"] > 1.5
    assert first == found["headline"]


def test_hosts_that_differ_a_little_are_not_called_slow() -> None:
    assert slow_host_of([Host("a", 1, step_us=100.0), Host("b", 1, step_us=120.0)], {}) is None
    assert slow_host_of([Host("a", 1, step_us=100.0)], {}) is None
    assert slow_host_of([Host("a", 1, step_us=100.0), Host("b", 1, step_us=None)], {}) is None
    slow = slow_host_of([Host("a", 1, step_us=100.0), Host("b", 1, step_us=280.0), Host("c", 1, step_us=90.0)], {})
    assert slow is not None
    assert (slow.host, slow.ratio) == ("b", pytest.approx(280 / 95))


def test_if_hosts_wait_for_each_other_the_slow_one_computes_less() -> None:
    def time_of(load_ns: int) -> HostTime:
        spent = {Label(ActivityKind.COMPUTATION): 100 - load_ns, Label(ActivityKind.ANNOTATION, "load_batch"): load_ns}
        return HostTime([HostStep(0, 0, 100)], 100, spent)

    hosts = [Host(name, 1, step_us=100.0) for name in "abcd"]
    times = {"a": time_of(10), "b": time_of(12), "c": time_of(60), "d": time_of(8)}
    slow = slow_host_of(hosts, times)
    assert slow is not None
    assert (slow.host, slow.ratio, slow.held_up_percent) == ("c", 1.0, 50.0)
    cause = cause_of(times, {}, slow, 0)
    assert cause is not None
    assert cause.text == (
        "the other hosts wait for host c for up to 50.0 % of the step; there, load_batch takes 60.0 % of the step"
    )
    assert slow_host_of(hosts, {**times, "c": time_of(25)}) is None
    every = cause_of({**times, "c": time_of(25)}, {}, None, 0)
    assert every is not None
    assert every.text == "compute-bound: XLA operations ran for 86.2 % of the step"


@pytest.mark.timing
def test_the_time_to_read_events_grows_with_their_number_alone() -> None:
    def seconds(steps: int) -> float:
        planes = _planes_of(tpu_host(devices=1, steps=steps, first_step=0))
        took = []
        for _ in range(3):
            started = time.process_time()
            found = host_time(planes)
            took.append(time.process_time() - started)
            assert found is not None
            assert len(found.steps) == steps
        return min(took)

    seconds(100)
    assert seconds(4_000) < 16 * seconds(500)  # Quadratic: 64 times.


def _planes_of(data: bytes) -> list[Plane]:
    with tempfile.NamedTemporaryFile() as file:
        file.write(data)
        file.flush()
        return read_planes(Path(file.name))


def test_a_device_profile_names_the_part_of_its_steps(tmp_path: Path) -> None:
    folder = tmp_path / "plugins" / "profile" / "s"
    folder.mkdir(parents=True)
    (folder / "h.xplane.pb").write_bytes(tpu_host())
    assert re.fullmatch(r"compute-bound: Device compute takes [\d.]+ % of the step", typed_first(tmp_path))
    (folder / "h.xplane.pb").write_bytes(tpu_host(idle_us=9_000))
    assert re.fullmatch(
        r"the devices were idle for [89]\d\.\d % of the step, and the profile does not show why", typed_first(tmp_path)
    )


def test_a_device_profile_has_the_numbers_of_its_program_and_what_the_host_did_while_devices_waited(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "plugins" / "profile" / "s"
    folder.mkdir(parents=True)
    (folder / "h.xplane.pb").write_bytes(tpu_host(steps=6, idle_us=9_000, first_step=4_200))
    found = _json(tmp_path)
    assert [step["name"] for step in found["steps"]] == [str(4_200 + number) for number in range(6)]
    assert re.fullmatch(r"load_batch takes [89]\d\.\d % of the step", found["headline"])


def typed_first(logs: Path) -> str:
    """Return the first line of a device's summary, without XProf's conclusion below it."""
    return typed("summary", str(logs)).output.splitlines()[0]


def test_segments_are_overlaid_and_joined() -> None:
    segments = [(0, 10, "a"), (10, 20, "b"), (20, 30, "a")]
    assert list(overlaid(segments, [(5, 12), (14, 15), (29, 40)], "x")) == [
        (0, 5, "a"), (5, 10, "x"), (10, 12, "x"), (12, 14, "b"), (14, 15, "x"), (15, 20, "b"),
        (20, 29, "a"), (29, 30, "x"),
    ]  # fmt: skip
    assert list(overlaid(segments, [(5, 25)], "x", lambda label: label == "a")) == [
        (0, 5, "a"), (5, 10, "x"), (10, 20, "b"), (20, 25, "x"), (25, 30, "a"),
    ]  # fmt: skip
    assert list(joined([(0, 5, "a"), (5, 7, "a"), (7, 8, "b"), (9, 10, "b")])) == [
        (0, 7, "a"),
        (7, 8, "b"),
        (9, 10, "b"),
    ]
    assert list(joined([])) == []


def test_every_moment_of_a_step_is_counted_once(jobs: Path) -> None:
    for file in jobs.rglob("*.xplane.pb"):
        found = host_time(read_planes(file))
        assert found is not None
        assert sum(found.spent_ns.values()) == found.whole_ns, file
        for step in found.steps:
            assert sum(step.spent_ns.values()) == step.end_ns - step.start_ns, file


def _plane(*events: tuple[str, int, int]) -> Plane:
    """A host with one thread, from the names, starts and ends of its events in nanoseconds."""
    message: Any = type("Message", (), {})()
    names = sorted({name for name, _, _ in events})

    def made(**fields: Any) -> Any:
        return type("Message", (), fields)()

    message.name, message.stats = b"/host:CPU", []
    message.stat_metadata = [made(key=1, value=made(name=b"step_num"))]
    message.event_metadata = [made(key=number, value=made(name=name.encode())) for number, name in enumerate(names, 1)]
    stat = made(metadata_id=1, int64_value=7, uint64_value=0, str_value=b"")
    message.lines = [
        made(
            name=b"python",
            timestamp_ns=0,
            events=[
                made(
                    metadata_id=names.index(name) + 1,
                    offset_ps=first_ns * 1000,
                    duration_ps=(end - first_ns) * 1000,
                    stats=[stat] if name == "train" else [],
                )
                for name, first_ns, end in events
            ],
        )
    ]
    return Plane(message)


def test_nested_regions_count_for_the_innermost() -> None:
    found = host_time(
        [
            _plane(
                ("train", 0, 100),
                ("data", 0, 80),
                ("decode", 10, 70),
                ("PjitFunction(f)", 80, 90),
                ("backend_compile_and_load", 82, 90),
                ("$numpy asarray", 90, 95),
                ("np.asarray(jax.Array)", 91, 92),
                ("$numpy asarray", 95, 96),
                ("$time sleep", 96, 99),
            )
        ]
    )
    assert found is not None
    spent = {label: spent for label, spent in found.spent_ns.items() if spent}
    assert spent == {
        Label(ActivityKind.ANNOTATION, "data"): 20,
        Label(ActivityKind.ANNOTATION, "decode"): 60,
        Label(ActivityKind.RUNTIME, "PjitFunction(f)"): 2,
        Label(ActivityKind.TRANSFER, "numpy.asarray"): 5,
        Label(ActivityKind.PYTHON, "numpy.asarray"): 1,
        Label(ActivityKind.COMPILATION, "backend_compile_and_load"): 8,
        Label(ActivityKind.PYTHON, "time.sleep"): 3,
        Label(ActivityKind.NONE): 1,
    }
    assert found.calls[Label(ActivityKind.ANNOTATION, "data")] == (1, 80)
    assert [step.number for step in found.steps] == [7]
    assert found.compilations == 1


@pytest.mark.parametrize(
    "ends", [("$engines.py:74 stop", "$engines.py:90 _stop"), ("$profiler.py:230 stop_trace", "$builtins len")]
)
def test_the_time_to_end_the_trace_is_not_the_programs(ends: tuple[str, str]) -> None:
    found = host_time(
        [_plane(("PjitFunction(f)", 0, 10), ("$time sleep", 10, 100), (ends[0], 100, 900), (ends[1], 110, 890))]
    )
    assert found is not None
    assert found.whole_ns == 100
    assert found.spent_ns[Label(ActivityKind.PYTHON, "time.sleep")] == 90
