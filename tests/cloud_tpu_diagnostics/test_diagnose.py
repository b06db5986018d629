"""The promises of `diagnose` to the block that it wraps."""

from __future__ import annotations

import contextlib
import importlib
import sys
import timeit
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from cloud_tpu_diagnostics import diagnostic
from cloud_tpu_diagnostics._collect import blocks, trace_file
from cloud_tpu_diagnostics.configuration.debug_configuration import DebugConfig
from cloud_tpu_diagnostics.configuration.diagnostic_configuration import DiagnosticConfig
from cloud_tpu_diagnostics.configuration.hang_configuration import HangConfig
from cloud_tpu_diagnostics.configuration.stack_trace_configuration import StackTraceConfig
from cloud_tpu_diagnostics.exceptions import ConfigurationError

from ..waiting import run_program
from .diagnosed_jobs import HEADER, Job, run


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Use a folder instead of /tmp/debugging."""
    monkeypatch.setattr(trace_file, "FOLDER", tmp_path / "debugging")
    return tmp_path / "debugging"


def _config(interval: object = 600, *, collect: bool = True, cloud: bool = False) -> DiagnosticConfig:
    return DiagnosticConfig(DebugConfig(StackTraceConfig(collect, cloud, interval)))  # type: ignore[arg-type]


_OFF = [
    DiagnosticConfig(),
    DiagnosticConfig(DebugConfig()),
    DiagnosticConfig(DebugConfig(StackTraceConfig(), HangConfig())),
    _config(collect=False, cloud=True),
]


@pytest.mark.parametrize("config", _OFF)
def test_nothing_happens_where_nothing_is_collected(
    config: DiagnosticConfig, folder: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "cloud_tpu_diagnostics._collect.blocks", None)  # To import it would raise.
    with diagnostic.diagnose(config):
        pass
    assert not folder.exists()
    assert capfd.readouterr() == ("", "")


@pytest.mark.timing
def test_a_block_that_collects_nothing_costs_less_than_an_empty_context_manager() -> None:
    @contextlib.contextmanager
    def empty() -> Iterator[None]:
        yield

    def ours() -> None:
        with diagnostic.diagnose(_OFF[0]):
            pass

    def theirs() -> None:
        with empty():
            pass

    assert min(timeit.repeat(ours, number=2000, repeat=9)) < 1.5 * min(timeit.repeat(theirs, number=2000, repeat=9))


def test_a_block_on_the_console_loads_nothing_that_only_trace_files_and_companions_need() -> None:
    program = """
import sys
before = set(sys.modules)
from cloud_tpu_diagnostics import diagnostic
from cloud_tpu_diagnostics.configuration import debug_configuration, diagnostic_configuration, stack_trace_configuration
traces = stack_trace_configuration.StackTraceConfig(collect_stack_trace=True)
with diagnostic.diagnose(diagnostic_configuration.DiagnosticConfig(debug_configuration.DebugConfig(traces))):
    loaded = set(sys.modules) - before
print(sorted(name for name in loaded if name.startswith(("pathlib", "json", "subprocess", "socket", "urllib"))))
"""
    assert run_program(program) == "[]\n"


def test_the_documented_example_writes_to_the_console(tmp_path: Path) -> None:
    code, out, err = run(
        """
logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
output(faulthandler.is_enabled())
with diagnostic.diagnose(config()):
    output(faulthandler.is_enabled())
output(faulthandler.is_enabled())
""",
        tmp_path / "d",
    )
    assert (code, out.split()) == (0, ["False", "True", "False"])
    assert err == "INFO Stack trace will be written to the console.\n"
    assert not (tmp_path / "d").exists()


def test_with_the_cloud_it_logs_the_path_of_the_file(tmp_path: Path) -> None:
    code, out, err = run(
        """
logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
without_companion()
with diagnostic.diagnose(config(cloud=True)):
    output(*trace_file.FOLDER.iterdir())
""",
        tmp_path / "d",
    )
    assert code == 0
    assert err.splitlines()[0] == f"INFO Stack trace will be written in: {out.strip()}"


_ENDINGS = {
    "pass": "",
    "raise ValueError('theirs')": "ValueError: theirs",
    "raise KeyboardInterrupt": "KeyboardInterrupt",
    "sys.exit('theirs')": "theirs",
    "raise GeneratorExit": "GeneratorExit",
}


@pytest.mark.parametrize("ending", _ENDINGS)
@pytest.mark.parametrize("cloud", [False, True])
def test_leaving_does_not_wait_on_any_path(tmp_path: Path, ending: str, cloud: bool) -> None:
    """The interval is 600 s: waiting for it would exceed the limit of this test."""
    _, _, err = run(f"with diagnostic.diagnose(config(cloud={cloud})):\n    {ending}", tmp_path / "d")
    assert err.rstrip().rpartition("\n")[2] == _ENDINGS[ending]


@pytest.mark.parametrize("kind", [ValueError, KeyboardInterrupt, SystemExit, StopIteration, GeneratorExit])
def test_an_exception_of_the_block_passes_through_unchanged(kind: type[BaseException]) -> None:
    error = kind("theirs")
    with pytest.raises(kind) as caught, diagnostic.diagnose(_config()):
        raise error
    assert caught.value is error
    assert error.__context__ is None


@pytest.mark.parametrize("interval", [0, -1, 0.0, float("nan"), float("inf"), "600", True, None, [600], 1j])
def test_an_invalid_interval_is_refused_when_the_block_is_entered(interval: object) -> None:
    block = diagnostic.diagnose(_config(interval))
    with (
        pytest.raises(ConfigurationError, match=r"stack_trace_interval_seconds is .*; give a number of seconds"),
        block,
    ):
        pytest.fail("the block was entered")


@pytest.mark.parametrize("interval", [1, 0.5, 1e-9, 1e300, 10**300])
def test_any_number_above_zero_is_an_interval(interval: float) -> None:
    with diagnostic.diagnose(_config(interval)):
        assert blocks._current is not None
    assert blocks._current is None


_NO_CONFIGS = ["console", StackTraceConfig(True), DebugConfig(), DiagnosticConfig(StackTraceConfig())]  # type: ignore[arg-type]


@pytest.mark.parametrize("config", _NO_CONFIGS)
def test_an_invalid_configuration_is_refused(config: object) -> None:
    with (
        pytest.raises(ConfigurationError, match="give it a DiagnosticConfig"),
        diagnostic.diagnose(config),  # type: ignore[arg-type]
    ):
        pytest.fail("the block was entered")


class _Raising:
    def __getattr__(self, name: str) -> object:
        raise RuntimeError(name)

    def __bool__(self) -> bool:
        raise RuntimeError("no truth")

    def __repr__(self) -> str:
        raise RuntimeError("no text")


_JUNK = [
    _Raising(),
    DiagnosticConfig(_Raising()),  # type: ignore[arg-type]
    DiagnosticConfig(DebugConfig(_Raising())),  # type: ignore[arg-type]
    DiagnosticConfig(DebugConfig(StackTraceConfig(_Raising()))),  # type: ignore[arg-type]
    DiagnosticConfig(DebugConfig(StackTraceConfig(True, _Raising()))),  # type: ignore[arg-type]
    DiagnosticConfig(DebugConfig(StackTraceConfig(True, False, _Raising()))),  # type: ignore[arg-type]
    DiagnosticConfig(DebugConfig(hang_config=_Raising())),  # type: ignore[arg-type]
    DiagnosticConfig(DebugConfig(hang_config=SimpleNamespace(enabled=True))),  # type: ignore[arg-type]
]


@pytest.mark.parametrize("config", _JUNK, ids=range(len(_JUNK)))
def test_any_other_argument_is_refused_with_a_configuration_error(config: object) -> None:
    with pytest.raises(ConfigurationError), diagnostic.diagnose(config):  # type: ignore[arg-type]
        pytest.fail("the block was entered")


def test_an_interval_is_not_checked_if_nothing_is_collected() -> None:
    with diagnostic.diagnose(_config("never", collect=False)):
        assert blocks._current is None


def test_the_header_has_the_interval_as_given(tmp_path: Path) -> None:
    job = Job("with diagnostic.diagnose(config(0.25)): input()", tmp_path / "d")
    job.wait_for_stderr("a stack trace snapshot every 0.25 seconds.\nTimeout (0:00:00.250000)!\n")
    job.go_on()
    assert job.end()[0] == 0


def test_a_name_of_several_lines_is_one_line_in_a_dump(tmp_path: Path) -> None:
    """Otherwise it could resemble another thread, or control the terminal."""
    job = Job(
        """
names = {}
exec(compile("def wait():\\n input()", "a\\nb\\x1b", "exec"), names)
names["wait"].__code__ = names["wait"].__code__.replace(co_name="c\\nThread 0x1 (most recent call first):" + "d" * 999)
with diagnostic.diagnose(config(0.25)): names["wait"]()
""",
        tmp_path / "d",
    )
    job.wait_for_dumps(after="Timeout (0:00:00.250000)!\n")
    job.go_on()
    dump = job.end()[2].partition("Timeout (0:00:00.250000)!\n")[2].partition(HEADER)[0].splitlines()
    assert dump[1].startswith('  File "a\\x0ab\\x1b", line 2 in c\\x0aThread 0x1 (most recent call first):ddd')
    assert dump[1].endswith("d...")
    assert len(dump) == 3


def test_a_function_can_be_decorated_and_call_itself() -> None:
    @diagnostic.diagnose(_config())
    def count_down(number: int) -> int:
        return number if not number else count_down(number - 1)

    assert count_down(3) == 0


@pytest.mark.parametrize("stderr", ["None", "io.StringIO()", "open(os.devnull)", "closed_file()", "Odd()"])
def test_a_stderr_that_is_not_a_file_is_skipped(tmp_path: Path, stderr: str) -> None:
    """Notebooks have such a stderr, and so does pytest while it captures."""
    job = Job(
        f"""
import io
class Odd:
    def __getattr__(self, name): raise RuntimeError("odd")
def closed_file():
    file = open(os.devnull, "w")
    file.close()
    return file
sys.stderr = {stderr}
with diagnostic.diagnose(config(0.2)):
    sys.stdin.readline() if "devnull" not in {stderr!r} else time.sleep(0.3)
sys.stderr = sys.__stderr__
""",
        tmp_path / "d",
    )
    if "devnull" not in stderr:
        job.wait_for_dumps()
        job.go_on()
    code, _, err = job.end()
    assert code == 0
    assert ("Timeout (" in err) == (stderr != "open(os.devnull)")


def test_with_a_closed_stderr_nothing_is_written_to_the_file_that_has_its_number(tmp_path: Path) -> None:
    code, _, _ = run(
        """
os.close(2)
if sys.argv[2] == "from the start":
    sys.stderr = sys.__stderr__ = None
    theirs = os.open(sys.argv[3], os.O_WRONLY | os.O_CREAT)
    assert theirs == 2
with diagnostic.diagnose(config(0.1)): time.sleep(0.3)
""",
        tmp_path / "d",
        "from the start",
        str(tmp_path / "theirs"),
    )
    assert code == 0
    assert (tmp_path / "theirs").read_text() == ""


def test_a_log_handler_that_raises_does_not_fail_the_block(tmp_path: Path) -> None:
    code, out, _ = run(
        """
class Raising(logging.Handler):
    def emit(self, record): raise RuntimeError("theirs")
logging.getLogger().addHandler(Raising())
logging.getLogger().setLevel(0)
with diagnostic.diagnose(config()): output("in")
""",
        tmp_path / "d",
    )
    assert (code, out) == (0, "in\n")


def test_a_heartbeat_without_a_reader_does_nothing() -> None:
    assert diagnostic.heartbeat() is None
    assert diagnostic.heartbeat(step=3, phase="no such phase") is None


_SECOND_NAMES = {
    "src.diagnose": "diagnose",
    "src.debug": "DebugConfig",
    "src.stack_trace": "StackTraceConfig",
    "src.config.debug_configuration": "DebugConfig",
    "src.config.diagnostic_configuration": "DiagnosticConfig",
    "src.config.stack_trace_configuration": "StackTraceConfig",
    "src.config.hang_configuration": "HangConfig",
}


@pytest.mark.parametrize("module", _SECOND_NAMES)
def test_the_public_packages_module_paths_have_the_same_objects(module: str) -> None:
    name = _SECOND_NAMES[module]
    found = getattr(importlib.import_module(f"cloud_tpu_diagnostics.{module}"), name)
    assert found in (diagnostic.diagnose, DebugConfig, DiagnosticConfig, StackTraceConfig, HangConfig)
    assert found.__name__ == name


def test_the_defaults_are_constants_of_src_util_default() -> None:
    from cloud_tpu_diagnostics.src.util import default

    assert default.STACK_TRACE_INTERVAL_SECONDS_DEFAULT == 600
    assert default.STACK_TRACE_DIR_DEFAULT == "/tmp/debugging/"
    assert (default.COLLECT_STACK_TRACE_DEFAULT, default.STACK_TRACE_TO_CLOUD_DEFAULT) == (False, False)


def test_configurations_are_plain_and_mutable() -> None:
    traces = StackTraceConfig()
    assert (traces.collect_stack_trace, traces.stack_trace_to_cloud, traces.stack_trace_interval_seconds) == (
        False,
        False,
        600,
    )
    traces.stack_trace_interval_seconds = -1
    assert DebugConfig().stack_trace_config is None
    assert DiagnosticConfig().debug_config is None


def test_signals_sent_each_interval_dump_stacks_and_end_no_process_without_a_handler(tmp_path: Path) -> None:
    program = """
from cloud_tpu_diagnostics.src import debug, stack_trace
from cloud_tpu_diagnostics.configuration.stack_trace_configuration import StackTraceConfig

without_companion()
threading.Thread(target=debug.send_user_signal, args=(0.1,), daemon=True).start()
time.sleep(0.5)  # Nothing handles the signal yet, which would end this process.
traces = StackTraceConfig(stack_trace_to_cloud=True)
stack_trace.enable_stack_trace_dumping(traces)
def waits_here():
    give_up = time.monotonic() + 20
    while time.monotonic() < give_up and not any("waits_here" in f.read_text() for f in trace_file.FOLDER.iterdir()):
        time.sleep(0.05)
waits_here()
stack_trace.disable_stack_trace_dumping(traces)
time.sleep(0.5)
stack_trace.disable_stack_trace_dumping(traces)  # Once too often does nothing.
output(any("in waits_here" in file.read_text() for file in trace_file.FOLDER.iterdir()))
"""
    code, out, _ = run(program, tmp_path / "d")
    assert (code, out) == (0, "True\n")


def test_a_handler_with_a_closed_file_raises_nothing(tmp_path: Path) -> None:
    from cloud_tpu_diagnostics.src.stack_trace import user_signal_handler_wrapper

    file = (tmp_path / "file").open("w")
    handler = user_signal_handler_wrapper(file, 5)
    handler(10, None)
    file.close()
    handler(10, None)
    assert "test_a_handler_with_a_closed_file" in (tmp_path / "file").read_text()
