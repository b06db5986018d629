"""`xprofiler summary` shows the results of XProf's own converters."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from ml_diagnostics_common.command.console import Console
from ml_diagnostics_common.command.errors import CommandError, NotFoundError
from xprofiler.summary.converters import Tables
from xprofiler.summary.host_operations import covered_ns, self_times
from xprofiler.summary.profiles import find_profile
from xprofiler.summary.reading import operations_of, summarized
from xprofiler.summary.summary import Operation, Summary

from ..pictures import texts_by_color
from .made_profiles import SESSION, cpu_session, tpu_session
from .typed_commands import typed
from .xspaces import gpu_host, tpu_host

pytest.importorskip("xprof")


def _summary(path: Path) -> Summary:
    profile = find_profile(str(path))
    return summarized(profile.name, {host: Path(file) for host, file in profile.xplanes.items()}, Console())


def _json(*arguments: str) -> dict[str, Any]:
    ended = typed("summary", *arguments, "--format", "json")
    assert ended.code == 0, ended.errors
    found: dict[str, Any] = json.loads(ended.output)
    return found


def test_the_summary_of_a_tpu_profile_has_its_numbers(tmp_path: Path) -> None:
    tpu_session(tmp_path)
    found = _json(str(tmp_path))
    assert (found["session"], found["device"], found["device_count"]) == (f"tensorboard/{SESSION}", "TPU v5p", 8)
    steps = {step["name"]: step for step in found["steps"]}
    assert len(steps) == 12
    assert steps["5"]["duration_us"] == pytest.approx(1_500)
    assert steps["5"]["slowest_host"] == "host-b"
    assert steps["5"]["parts_us"] == pytest.approx(
        {"Device compute": 850, "Device collective communication": 110, "Input": 360, "All others": 180}
    )
    assert (steps["4"]["duration_us"], steps["4"]["slowest_host"]) == (pytest.approx(1_200), "")
    assert found["step_times"] == pytest.approx(
        {"mean_us": 1_225, "median_us": 1_200, "minimum_us": 1_200, "maximum_us": 1_500, "deviation_us": 82.9}, rel=1e-3
    )
    assert (found["busy_percent"], found["busy_on"]) == (pytest.approx(85.2), "device")
    assert found["busy_percent"] + found["idle_percent"] == pytest.approx(100)
    assert "input-bound" in found["input"]["conclusion"]
    assert found["input"]["waiting_percent"] == pytest.approx(6.6)
    assert "trace_viewer@" in found["tools"]


def test_a_tpu_profiles_operations_are_those_that_ran_the_slowest_first(tmp_path: Path) -> None:
    tpu_session(tmp_path)
    operations = _summary(tmp_path).operations
    assert [operation.name for operation in operations][:2] == ["convolution.7", "fusion.21"]
    slowest = operations[0]
    assert (slowest.runs, slowest.self_us) == (2 * 4 * 12, pytest.approx(2 * 4 * 12 * 420))
    assert slowest.gflops_per_second == pytest.approx(40e9 / 420e-6 / 1e9)
    assert (slowest.category, slowest.framework_name) == ("convolution", "jit(train)/convolution")
    assert sum(operation.percent for operation in operations) == pytest.approx(100)


def test_a_rate_that_xprof_cannot_compute_is_not_known() -> None:
    columns = ["hlo_op_name", "category", "occurrences", "total_self_time", "tf_op_name", "bound_by"]
    cells = ["fusion.1", "loop fusion", 1.0, 2.0, None, "Unknown", float("nan"), float("inf")]
    table = {
        "cols": [{"id": name} for name in [*columns, "normalized_flop_rate", "measured_memory_bw"]],
        "rows": [{"c": [{"v": cell} for cell in cells]}],
    }
    assert operations_of(Tables([{}, table])) == [Operation("fusion.1", "loop fusion", 1, 2.0, 100.0)]


def test_each_host_has_its_step_times(tmp_path: Path) -> None:
    tpu_session(tmp_path)
    one, other = _summary(tmp_path).hosts
    assert (one.name, one.cores, one.step_us, one.slowest_steps) == ("host-a", 4, pytest.approx(1_200), 0)
    assert (other.name, other.cores, other.step_us, other.slowest_steps) == ("host-b", 4, pytest.approx(1_225), 1)
    assert one.waiting_percent == pytest.approx(15)


def test_processes_of_one_machine_are_distinguished(tmp_path: Path) -> None:
    folder = tmp_path / "plugins" / "profile" / SESSION
    folder.mkdir(parents=True)
    for name, late_us in (("vm_9013", 0), ("vm_9012", 300), ("a", 40)):
        (folder / f"{name}.xplane.pb").write_bytes(tpu_host(host="vm", devices=1, extra_us={2: late_us}))
    found = _summary(tmp_path)
    assert {host.name: host.step_us for host in found.hosts} == pytest.approx(
        {"a": 1_200 + 40 / 12, "vm_9012": 1_200 + 300 / 12, "vm_9013": 1_200}
    )
    assert {step.name: step.slowest_host for step in found.steps if step.slowest_host} == {"2": "vm_9012"}


def test_a_jax_program_on_the_cpu_shows_its_steps_and_its_operations(tmp_path: Path) -> None:
    pytest.importorskip("jax", minversion="0.10")  # Older ones mark no operations on the CPU.
    cpu_session(tmp_path, "laptop-1", "laptop-2")
    found = _summary(tmp_path)
    assert (found.device, found.device_count, found.busy_on) == ("CPU", 0, "host")
    assert [host.name for host in found.hosts] == ["laptop-1", "laptop-2"]
    assert {host.start_offset_us for host in found.hosts} == {0.0}
    assert len(found.steps) >= 5
    assert [host.cores for host in found.hosts] == [1, 1]
    assert all(0 < step.duration_us < 60e6 for step in found.steps)
    assert found.busy_percent is not None
    assert 0 < found.busy_percent <= 100
    assert found.operations
    assert found.operations[0].runs >= 2 * 8
    assert not any(operation.name.startswith("Threadpool") for operation in found.operations)


def test_a_gpu_profile_shows_its_kernels_and_does_not_guess_the_rest(tmp_path: Path) -> None:
    folder = tmp_path / "plugins" / "profile" / SESSION
    folder.mkdir(parents=True)
    (folder / "gpu-0.xplane.pb").write_bytes(gpu_host())
    found = _summary(tmp_path)
    slowest = found.operations[0]
    assert (slowest.name, slowest.framework_name) == ("kernel_convolution.7", "jit(train)/convolution")
    assert (slowest.runs, slowest.self_us) == (2 * 10, pytest.approx(2 * 10 * 420))
    assert (found.device_count, found.busy_percent, list(found.steps)) == (2, None, [])
    assert any("No step marker" in note for note in found.notes)


def test_nothing_is_written_beside_the_captured_files(tmp_path: Path) -> None:
    folder = tpu_session(tmp_path)
    before = {file.name: file.stat().st_mtime_ns for file in folder.iterdir()}
    folder.chmod(0o500)
    try:
        _json(str(tmp_path))
    finally:
        folder.chmod(0o700)
    assert {file.name: file.stat().st_mtime_ns for file in folder.iterdir()} == before


def test_a_host_with_a_damaged_profile_is_omitted_and_named(tmp_path: Path) -> None:
    folder = tpu_session(tmp_path)
    whole = (folder / "host-a.xplane.pb").read_bytes()
    (folder / "cut.xplane.pb").write_bytes(whole[: len(whole) // 2])
    (folder / "empty.xplane.pb").write_bytes(b"")
    found = _json(str(tmp_path))
    assert found["device_count"] == 8
    assert [note.partition(":")[0] for note in found["notes"]][:2] == ["cut", "empty"]


def test_an_unreadable_profile_is_an_error_that_names_its_hosts(tmp_path: Path) -> None:
    folder = tmp_path / "plugins" / "profile" / SESSION
    folder.mkdir(parents=True)
    (folder / "a.xplane.pb").write_bytes(b"this is not an xplane")
    (folder / "b.xplane.pb").write_bytes(b"")
    ended = typed("summary", str(tmp_path))
    assert (ended.code, ended.output) == (1, "")
    assert re.search(r"cannot read the profile of a, b.*capture it again", ended.errors)


def test_without_a_profile_the_exit_code_is_3(tmp_path: Path) -> None:
    assert typed("summary", str(tmp_path / "nowhere")).code == NotFoundError.exit_code
    assert typed("summary", str(tmp_path)).code == NotFoundError.exit_code
    tpu_session(tmp_path)
    assert typed("summary", str(tmp_path), "--session", "no").code == NotFoundError.exit_code
    assert typed("summary", "s3://bucket/logs").code == 2


def test_a_converter_that_dies_is_an_error_and_not_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tpu_session(tmp_path)
    broken = tmp_path / "modules" / "xprof"
    broken.mkdir(parents=True)
    (broken / "__init__.py").write_text("import os\nos.write(2, b'check failed')\nos.abort()\n")
    monkeypatch.setenv("PYTHONPATH", str(broken.parent))
    with pytest.raises(CommandError, match=r"(?s)XProf failed on .*check failed"):
        _summary(tmp_path)


def test_a_plot_is_a_picture_and_another_suffix_an_error(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    tpu_session(tmp_path)
    plot = tmp_path / "plot.png"
    ended = typed("summary", str(tmp_path), "--plot", str(plot))
    assert (ended.code, ended.errors) == (0, f"Plot saved to {plot}.\n")
    assert plot.read_bytes().startswith(b"\x89PNG")
    plots = {name: tmp_path / f"{name or 'light'}.svg" for name in ("", "--dark")}
    for option, svg in plots.items():
        assert typed("summary", str(tmp_path), "--plot", str(svg), *filter(None, [option])).code == 0
    light, dark = map(texts_by_color, plots.values())
    assert sorted(map(sorted, light.values())) == sorted(map(sorted, dark.values()))
    assert not light.keys() & dark.keys()
    ended = typed("summary", str(tmp_path), "--plot", str(tmp_path / "plot.nothing"))
    assert (ended.code, ended.output) == (2, "")
    assert "expected a file name that ends in .png, .svg, .pdf" in ended.errors
    ended = typed("summary", str(tmp_path), "--plot", str(tmp_path / "gone" / "plot.png"))
    assert (ended.code, ended.output) == (2, "")


@pytest.mark.parametrize(
    ("spans", "expected"),
    [
        ([(0, 10, "call"), (2, 4, "a"), (5, 9, "b"), (6, 7, "a")], {"call": 4, "a": 3, "b": 3}),
        ([(0, 10, "a"), (10, 20, "a")], {"a": 20}),
        ([], {}),
    ],
)
def test_the_time_of_an_operation_is_without_those_that_it_calls(
    spans: Sequence[tuple[int, int, str]], expected: dict[str, int]
) -> None:
    assert self_times(spans) == expected
    assert sum(self_times(spans).values()) == covered_ns(spans)


def test_threads_that_overlap_are_busy_once() -> None:
    assert covered_ns([(0, 10, "a"), (5, 12, "b"), (20, 21, "c"), (6, 7, "d")]) == 13


def test_verbose_prints_the_output_of_xprof(tmp_path: Path) -> None:
    tpu_session(tmp_path)
    errors = io.StringIO()
    profile = find_profile(str(tmp_path))
    files = {host: Path(file) for host, file in profile.xplanes.items()}
    summarized(profile.name, files, Console(is_verbose=True, err=errors))
    assert "profiler_plugin" in errors.getvalue(), "a file of XProf's C++"


@pytest.mark.skipif(os.name == "nt", reason="there are no such signals to send")
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_an_ended_summary_leaves_no_process_and_no_file(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, name: str
) -> None:
    psutil = pytest.importorskip("psutil")
    tpu_session(tmp_path)
    temporary = tmp_path_factory.mktemp("temporary")
    argv = [sys.executable, "-m", "xprofiler", "summary", str(tmp_path)]
    with subprocess.Popen(argv, env={**os.environ, "TMPDIR": str(temporary)}, stderr=subprocess.PIPE) as process:
        while not (readers := psutil.Process(process.pid).children()):
            assert process.poll() is None
        process.send_signal(getattr(signal, name))
        _, errors = process.communicate(timeout=30)
    assert (process.returncode, errors) == (130, b"interrupted\n")
    assert psutil.wait_procs(readers, timeout=30)[1] == []
    assert list(temporary.iterdir()) == []


def test_without_disk_space_for_xprof_no_numbers_are_shown(tmp_path: Path) -> None:
    """XProf stores its results beside the files, and if that fails it shows a part of them without a message."""
    pytest.importorskip("xprof")
    tpu_session(tmp_path)
    program = "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000)); "
    program += f"from xprofiler.cli import main; sys.exit(main(['summary', {str(tmp_path)!r}]))"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert "MB of temporary space" in ended.stderr
    assert "set TMPDIR to another folder" in ended.stderr


@pytest.mark.skipif(os.name == "nt", reason="there are no such limits")
@pytest.mark.parametrize("arguments", [("summary",), ("serve", "--no-browser", "-l")])
def test_without_a_temporary_folder_the_error_has_a_remedy(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    tpu_session(tmp_path)
    limited = "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0)); "
    program = f"{limited}from xprofiler.cli import main; sys.exit(main())"
    argv = [sys.executable, "-c", program, *arguments, str(tmp_path)]
    ended = subprocess.run(argv, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    assert ended.returncode == 1
    assert "xprofiler: cannot create a temporary folder" in ended.stderr
    assert "free some space, or set TMPDIR\n" in ended.stderr
