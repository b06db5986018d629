"""xprof(): three forms, one profile at a time, at its target when stop() returns; never at the job's cost."""

from __future__ import annotations

import asyncio
import copy
import datetime
import gzip
import inspect
import json
import logging
import os
import pickle
import sys
import threading
import warnings as warnings_module
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from google_cloud_mldiagnostics import xprof
from google_cloud_mldiagnostics._profiling import captures as captures_module
from google_cloud_mldiagnostics._profiling.captures import captures_of_this_process, finish_profiles
from google_cloud_mldiagnostics._profiling.engines import JaxEngine
from google_cloud_mldiagnostics._profiling.sessions import HostsCheck, Session
from google_cloud_mldiagnostics._run_state.active_run import ActiveRun, set_active_run
from google_cloud_mldiagnostics.exceptions import ProfilingError
from google_cloud_mldiagnostics.mlrun_types import MLRun
from ml_diagnostics_common.guard import LOSSES
from ml_diagnostics_common.xplane import read_xplane

from ..waiting import wait_until
from .profiled_runs import profiled_run, reported_sessions, sessions_put, xplanes

jax = pytest.importorskip("jax")


@pytest.fixture
def run(request: pytest.FixtureRequest) -> Iterator[ActiveRun]:
    with profiled_run(f"run-{abs(hash(request.node.name))}") as active:
        yield active


@pytest.fixture
def warnings(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    caplog.set_level(logging.WARNING)
    return lambda: [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def work() -> object:
    return jax.numpy.ones((64, 64)).sum().block_until_ready()


def taken(active: ActiveRun) -> list[str]:
    return xplanes(active.folder / "profiles" / "plugins" / "profile")


# --- Three forms --------------------------------------------------------------------------------------


def test_start_and_stop_leave_a_profile_in_the_runs_folder(run: ActiveRun) -> None:
    profile = xprof()
    profile.start()
    work()
    profile.stop()
    (file,) = taken(run)
    assert file.endswith("/host-a.xplane.pb")
    found = read_xplane(run.folder / "profiles/plugins/profile" / file)
    assert found.is_whole
    assert "/host:CPU" in found.planes


@pytest.mark.parametrize("source", ["argument", "variable"])
def test_the_trace_is_kept_as_json_too_where_that_is_asked_for(
    run: ActiveRun, monkeypatch: pytest.MonkeyPatch, source: str
) -> None:
    if source == "variable":
        monkeypatch.setenv("ML_DIAGNOSTICS_TRACE_JSON", "1")
    with xprof(session_id="one", trace_json=True if source == "argument" else None):
        work()
    with xprof(session_id="two", trace_json=False):
        work()
    folder = run.folder / "profiles/plugins/profile"
    assert sorted(path.name for path in (folder / "one").iterdir()) == ["host-a.trace.json.gz", "host-a.xplane.pb"]
    assert sorted(path.name for path in (folder / "two").iterdir()) == ["host-a.xplane.pb"]
    with gzip.open(folder / "one/host-a.trace.json.gz") as file:
        assert json.load(file)["traceEvents"]
    assert read_xplane(folder / "one/host-a.xplane.pb").is_whole


def test_a_copy_has_the_settings_and_no_profile_that_is_being_taken(run: ActiveRun) -> None:
    profiler = xprof(run.run, process_index_list=[0], session_id="one")
    profiler.start()
    copies = [copy.copy(profiler), copy.deepcopy(profiler), pickle.loads(pickle.dumps(profiler))]
    profiler.stop()
    for same in copies:
        same.stop()  # Nothing happens: it started no profile.
        assert (same._indexes, same._session_id) == (profiler._indexes, "one")


def test_a_with_block_is_profiled_and_its_error_is_the_users(run: ActiveRun) -> None:
    error = KeyError("the user's")

    def train() -> None:
        with xprof() as profile:
            work()
            assert isinstance(profile, xprof)
            raise error

    with pytest.raises(KeyError) as caught:
        train()
    assert caught.value is error
    assert len(taken(run)) == 1


def test_a_decorated_function_stays_itself_and_each_call_is_a_profile(run: ActiveRun) -> None:
    @xprof(session_id="called")
    def train(first: int, *, second: int = 2) -> int:
        """The user's docstring."""
        work()
        return first + second

    assert (train.__name__, train.__doc__) == ("train", "The user's docstring.")
    assert str(inspect.signature(train)) == "(first: 'int', *, second: 'int' = 2) -> 'int'"
    assert [train(1), train(1, second=5)] == [3, 6]
    assert taken(run) == ["called-2/host-a.xplane.pb", "called/host-a.xplane.pb"]


def test_a_method_can_be_decorated(run: ActiveRun) -> None:
    class Trainer:
        @xprof()
        def train(self) -> Trainer:
            work()
            return self

    trainer = Trainer()
    assert trainer.train() is trainer
    assert len(taken(run)) == 1


def test_a_coroutine_is_profiled_until_it_returns_not_until_it_is_made(run: ActiveRun) -> None:
    during = []

    @xprof()
    async def train() -> str:
        await asyncio.sleep(0)
        during.append(captures_of_this_process().current)
        return "done"

    assert inspect.iscoroutinefunction(train)
    assert asyncio.run(train()) == "done"
    assert during[0] is not None
    assert len(taken(run)) == 1


def test_a_generator_is_profiled_while_it_is_iterated(run: ActiveRun) -> None:
    @xprof()
    def batches() -> Generator[object, str, str]:
        answer = yield 1
        yield captures_of_this_process().current is not None
        return answer

    iterator = batches()
    assert not taken(run)
    assert next(iterator) == 1
    assert iterator.send("sent") is True
    with pytest.raises(StopIteration) as stopped:
        next(iterator)
    assert stopped.value.value == "sent"
    assert len(taken(run)) == 1


def test_an_asynchronous_generator_is_profiled_while_it_is_iterated(run: ActiveRun) -> None:
    @xprof()
    async def batches() -> AsyncIterator[object]:
        yield 1
        yield captures_of_this_process().current is not None

    async def consume() -> list[object]:
        return [item async for item in batches()]

    assert asyncio.run(consume()) == [1, True]
    assert len(taken(run)) == 1


def test_a_decorator_without_parentheses_is_an_error_with_the_reason(run: ActiveRun) -> None:
    with pytest.raises(ProfilingError, match=r"@xprof\(\), with parentheses"):

        @xprof  # type: ignore[arg-type]
        def train() -> None:
            pass


@pytest.mark.parametrize("indexes", [0, ["first"], [None], "ab"])
def test_invalid_indexes_of_processes_are_an_error(indexes: Any) -> None:
    with pytest.raises(ProfilingError, match=r"such as \[0, 2\]"):
        xprof(process_index_list=indexes)


def test_the_run_may_be_named_as_the_first_argument(run: ActiveRun) -> None:
    @xprof(run.run)
    def train() -> None:
        work()

    train()
    assert len(taken(run)) == 1
    with pytest.raises(ProfilingError, match="run other has ended"):
        xprof(MLRun(name="other")).start()


# --- Sessions -----------------------------------------------------------------------------------------


def test_a_session_is_called_as_the_user_says(run: ActiveRun) -> None:
    with xprof(session_id="in-the-block"):
        work()
    profile = xprof(session_id="of-the-object")
    profile.start(session_id="of-the-start")
    profile.stop()
    profile.start()
    profile.stop()
    names = [file.partition("/")[0] for file in taken(run)]
    assert names == ["in-the-block", "of-the-object", "of-the-start"]


def test_profiles_that_follow_each_other_have_sessions_of_their_own(run: ActiveRun) -> None:
    for _ in range(3):
        with xprof():
            pass
    assert len(taken(run)) == 3


def test_a_profile_is_reported_as_a_session_of_the_run(run: ActiveRun) -> None:
    with xprof(session_id="first"):
        work()
    assert finish_profiles(5)
    assert reported_sessions(run.run.name) == [("first", "ACTIVE"), ("first", "SUCCEEDED")]
    (first_id, started), (last_id, session) = sessions_put(run)
    assert first_id == last_id == "first"
    assert started["targetSessions"]["host-a"]["sessionPhase"] == "ACTIVE"
    assert started["targetSessions"]["host-a"]["endTime"].startswith("0001")
    assert session["profilerTargets"] == ["host-a"]
    assert session["targetSessions"]["host-a"]["sessionPhase"] == "SUCCEEDED"
    assert session["storageFolderUri"] == str(run.folder / "profiles/plugins/profile/first")
    assert float(session["duration"].removesuffix("s")) > 0


@pytest.mark.parametrize("content", [None, b""])
def test_missing_hosts_are_logged(warnings: Callable[[], list[str]], content: bytes | None) -> None:
    with profiled_run("run-1", process_count=2) as active:
        folder = active.folder / "profiles/plugins/profile/half"
        folder.mkdir(parents=True)
        (folder / "host-a.xplane.pb").write_bytes(b"x")
        if content is not None:
            (folder / "host-b.xplane.pb").write_bytes(content)
        now = datetime.datetime.now(datetime.timezone.utc)
        session = Session(active, "half", "programmatic", str(folder), "host-a", 0, 2, True, now)
        waited: list[float] = []
        check = HostsCheck(session, wait_seconds=2.0, monotonic=lambda: sum(waited))
        while (pause := check()) is not None:
            waited.append(pause)
        assert sum(waited) >= 2.0
        assert "1 of 2 hosts are there (host-a)" in warnings()[0]
        assert list(sessions_put(active)[-1][1]["targetSessions"]) == ["host-a"]
        (folder / "host-b.xplane.pb").write_bytes(b"x")
        assert HostsCheck(session)() is None
        assert list(sessions_put(active)[-1][1]["targetSessions"]) == ["host-a", "host-b"]


def test_a_process_that_is_not_listed_does_nothing_and_logs_it(
    run: ActiveRun, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    profile = xprof(process_index_list=[1, 2])
    profile.start()
    profile.stop()
    assert "profiling_status: skipped" in caplog.text
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert not taken(run)
    with xprof(process_index_list=(0,)):
        work()
    assert len(taken(run)) == 1


def test_decorating_initialises_nothing() -> None:
    import subprocess
    import sys

    program = (
        "import sys\n"
        "from google_cloud_mldiagnostics.core.xprof import Xprof\n"
        "@Xprof(process_index_list=[0])\n"
        "def train(): pass\n"
        "assert not {'jax', 'numpy', 'grpc'} & set(sys.modules), sorted(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


# --- Wrong use ----------------------------------------------------------------------------------------


def test_start_without_a_run_or_a_path_raises_with_what_to_do() -> None:
    set_active_run(None)
    with pytest.raises(ProfilingError, match="call machinelearning_run first"):
        xprof().start()
    with profiled_run("in-the-cloud", is_local=False):
        with pytest.raises(ProfilingError, match="gcs_path="), xprof():
            pytest.fail("the block ran")
        with profiled_run("again"), xprof():
            work()


def test_the_check_of_axlearn_before_it_profiles_agrees(run: ActiveRun) -> None:
    xprof()._ensure_initialized()
    set_active_run(None)
    with pytest.raises(ProfilingError, match="machinelearning_run"):
        xprof()._ensure_initialized()


def test_a_second_start_and_a_stop_too_many_are_warnings(run: ActiveRun, warnings: Callable[[], list[str]]) -> None:
    profile = xprof()
    profile.stop()
    profile.start()
    profile.start()
    profile.stop()
    profile.stop()
    assert [("stop()" in text, "start()" in text) for text in warnings()] == [
        (True, False),
        (False, True),
        (True, False),
    ]
    assert len(taken(run)) == 1


def test_one_profile_at_a_time_and_the_inner_one_does_not_end_the_outer(
    run: ActiveRun, warnings: Callable[[], list[str]]
) -> None:
    with xprof(session_id="outer"):
        with xprof(session_id="inner"):
            work()
        assert not taken(run)
        work()
    assert taken(run) == ["outer/host-a.xplane.pb"]
    assert len(warnings()) == 1


def test_of_many_threads_one_profiles_and_none_fails(run: ActiveRun, warnings: Callable[[], list[str]]) -> None:
    gate = threading.Barrier(8)
    failed = []

    def profile() -> None:
        gate.wait()
        try:
            for _ in range(5):
                with xprof():
                    pass
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=profile) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    reported = reported_sessions(run.run.name)
    assert len(taken(run)) == sum(phase == "SUCCEEDED" for _, phase in reported) > 0
    assert all("another profile" in text for text in warnings())


# --- What fails costs a profile -----------------------------------------------------------------------


def test_without_jax_the_extra_is_named_and_the_job_goes_on(
    run: ActiveRun, warnings: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "jax.profiler", None)
    with xprof():
        done = "trained"
    assert done == "trained"
    assert not taken(run)
    assert "pip install 'google-cloud-mldiagnostics[jax]'" in warnings()[0]


def test_beside_the_users_own_profiler_nothing_is_taken_from_it(
    run: ActiveRun, warnings: Callable[[], list[str]], tmp_path: Path
) -> None:
    jax.profiler.start_trace(str(tmp_path))
    with xprof(session_id="refused"):
        work()
    jax.profiler.stop_trace()
    assert len(xplanes(tmp_path)) == 1
    assert not taken(run)
    assert "could not be started" in warnings()[0]
    assert LOSSES["xprof start: RuntimeError"] == 1
    assert reported_sessions(run.run.name) == [("refused", "FAILED")]
    with xprof():
        work()
    assert len(taken(run)) == 1


def test_a_trace_that_cannot_be_written_leaves_profiling_usable(
    run: ActiveRun, warnings: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """JAX itself would refuse every later profile."""
    scratch = []
    monkeypatch.setattr(
        captures_module, "scratch_folder", lambda active: scratch.append(active.folder / "no") or scratch[0]
    )
    (run.folder / "no").parent.mkdir(parents=True, exist_ok=True)
    (run.folder / "no").write_text("a file stands where the trace should go")
    with xprof(session_id="lost"):
        work()
    assert "is lost" in warnings()[0]
    assert reported_sessions(run.run.name) == [("lost", "ACTIVE"), ("lost", "FAILED")]
    monkeypatch.undo()
    with xprof(session_id="after"):
        work()
    assert taken(run) == ["after/host-a.xplane.pb"]


def test_a_path_that_cannot_be_written_keeps_the_profile_on_this_machine(
    in_production: None, warnings: Callable[[], list[str]], tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    with profiled_run("run-1", finish_seconds=0.5, gcs_path=str(tmp_path / "file")) as active:
        with xprof(session_id="kept"):
            work()
        assert xplanes(active.folder / "staged") == ["plugins/profile/kept/host-a.xplane.pb"]
        assert "waits in" in wait_until(warnings)[0]


def test_a_profile_without_the_device_is_reported_as_failed(
    run: ActiveRun, warnings: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(JaxEngine, "has_accelerator", lambda self: True)
    with xprof(session_id="blind"):
        work()
    assert "it shows no device" in warnings()[0]
    assert reported_sessions(run.run.name)[-1] == ("blind", "FAILED")
    assert len(taken(run)) == 1


def test_ctrl_c_inside_stop_leaves_profiling_usable(run: ActiveRun, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(JaxEngine, "stop", interrupted)
        with pytest.raises(KeyboardInterrupt), xprof():
            work()
    with xprof(session_id="after"):
        work()
    assert taken(run) == ["after/host-a.xplane.pb"]


def test_ctrl_c_inside_start_leaves_profiling_usable(run: ActiveRun, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(captures_module, "at_exit_from_now", interrupted)  # JAX is tracing already.
        with pytest.raises(KeyboardInterrupt):
            xprof().start()
    with xprof(session_id="after"):
        work()
    assert taken(run) == ["after/host-a.xplane.pb"]


def test_a_failing_registration_does_not_fail_the_profile(run: ActiveRun, in_production: None) -> None:
    run.registration.put_session = None
    with xprof(session_id="unreported"):
        work()
    assert finish_profiles(5)
    assert taken(run) == ["unreported/host-a.xplane.pb"]
    assert reported_sessions(run.run.name)[-1] == ("unreported", "SUCCEEDED")


def test_a_forked_child_neither_profiles_nor_ends_its_parents_profile(run: ActiveRun) -> None:
    profile = xprof(session_id="parents")
    profile.start()
    with warnings_module.catch_warnings():
        warnings_module.simplefilter("ignore")  # JAX warns of any fork; this child uses no JAX.
        child = os.fork()
    if child == 0:
        try:
            profile.stop()
            with xprof(session_id="childs"):
                pass
            finish_profiles(0)
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    work()
    profile.stop()
    assert taken(run) == ["parents/host-a.xplane.pb"]
    assert reported_sessions(run.run.name) == [("parents", "ACTIVE"), ("parents", "SUCCEEDED")]


def test_the_end_of_the_process_ends_its_profile(run: ActiveRun) -> None:
    profile = xprof(session_id="open")
    profile.start()
    work()
    assert finish_profiles(5)
    assert taken(run) == ["open/host-a.xplane.pb"]
    profile.stop()
    assert len(taken(run)) == 1


def test_the_scratch_folder_is_removed(run: ActiveRun) -> None:
    with xprof():
        work()
    assert os.listdir(run.folder / "scratch") == []  # noqa: PTH208


def test_the_real_xprof_reads_it(run: ActiveRun) -> None:
    convert = pytest.importorskip("xprof.convert.raw_to_tool_data")
    with xprof(), jax.profiler.StepTraceAnnotation("train", step_num=1):
        work()
    (file,) = taken(run)
    path = str(run.folder / "profiles/plugins/profile" / file)
    data, _ = convert.xspace_to_tool_data([path], "overview_page", {})
    page = json.loads(data)
    facts = {name: value for table in page for name, value in (table.get("p") or {}).items()}
    assert (facts["host_count"], facts["device_type"]) == ("1", "CPU")
    (step,) = [row["c"][0]["v"] for row in page[1]["rows"]]
    assert step.endswith("1"), step
