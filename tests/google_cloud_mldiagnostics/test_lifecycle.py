"""The run records each end of its process: real processes, real signals."""

from __future__ import annotations

import shutil
import signal
import subprocess

import pytest
from google_cloud_mldiagnostics._run_state.attempts import END_NOT_RECORDED

from ..waiting import wait_until
from . import run_programs as programs
from .kept_entries import kept_entries


def last_phase() -> str:
    run = programs.kept_run()
    assert run["attempts"][-1]["phase"] == run["runPhase"]
    return run["runPhase"]


# --- The table of endings -----------------------------------------------------------------------------


def test_a_program_that_returns_has_completed_its_run() -> None:
    ended = programs.run("start_run()")
    assert ended.code == 0, ended.errors
    assert last_phase() == "COMPLETED"
    assert programs.phases() == ["ACTIVE", "COMPLETED"]


@pytest.mark.parametrize("status", ["", "0", "None", "False"])
def test_sys_exit_without_a_complaint_completes_the_run(status: str) -> None:
    assert programs.run(f"start_run(); sys.exit({status})").code == 0
    assert last_phase() == "COMPLETED"


@pytest.mark.parametrize(("status", "code", "reason"), [("3", 3, "sys.exit(3)"), ("'no data'", 1, "sys.exit: no data")])
def test_sys_exit_with_a_complaint_fails_the_run(status: str, code: int, reason: str) -> None:
    assert programs.run(f"start_run(); sys.exit({status})").code == code
    assert last_phase() == "FAILED"
    assert programs.kept_run()["errorDetails"] == reason


@pytest.mark.parametrize("leave", ["exit", "quit"])
def test_the_exits_that_are_for_people_count_too(leave: str) -> None:
    assert programs.run(f"start_run(); {leave}(5)").code == 5
    assert programs.kept_run()["errorDetails"] == "sys.exit(5)"


def test_a_program_without_them_has_a_run() -> None:
    assert programs.run("import builtins; del builtins.exit, builtins.quit; start_run().finish()").code == 0
    assert last_phase() == "COMPLETED"


def test_sys_exit_that_the_program_catches_does_not_end_the_run() -> None:
    ended = programs.run("""
        start_run()
        try:
            sys.exit(2)
        except SystemExit as error:
            assert error.code == 2
    """)
    assert ended.code == 0, ended.errors
    assert last_phase() == "COMPLETED"


def test_sys_exit_deep_in_the_program_ends_the_run_with_its_code() -> None:
    ended = programs.run("""
        start_run()
        def main():
            try:
                sys.exit(4)
            finally:
                time.sleep(0.01)
        main()
    """)
    assert ended.code == 4
    assert last_phase() == "FAILED"


def test_an_uncaught_exception_fails_the_run_and_is_printed_as_usual() -> None:
    ended = programs.run("start_run(); raise ValueError('nan loss')")
    assert ended.code == 1
    assert "ValueError: nan loss" in ended.errors
    assert last_phase() == "FAILED"
    assert programs.kept_run()["errorDetails"] == "ValueError: nan loss"
    assert programs.phases() == ["ACTIVE", "FAILED"]


def test_a_secret_in_an_exception_stays_home() -> None:
    programs.run("start_run(); raise ValueError(''.join(['password', '=hun', 'ter2 was refused']))")
    assert "hunter2" not in str(programs.kept_run())
    assert "hunter2" not in str([entry.payload for entry in kept_entries("mlrun_process")])


def test_the_excepthook_that_was_there_before_is_called() -> None:
    ended = programs.run("""
        sys.excepthook = lambda *_: print("mine", flush=True)
        start_run()
        raise ValueError
    """)
    assert ended.output == "mine\n"
    assert last_phase() == "FAILED"


def test_a_later_excepthook_that_does_not_call_ours_hides_no_failure() -> None:
    programs.run("""
        start_run()
        sys.excepthook = lambda *_: None
        raise ValueError('hidden')
    """)
    assert programs.kept_run()["errorDetails"] == "ValueError: hidden"


def test_an_exception_that_the_program_only_shows_fails_nothing() -> None:
    programs.run("""
        start_run()
        try:
            raise ValueError
        except ValueError:
            sys.excepthook(*sys.exc_info())
    """)
    assert last_phase() == "COMPLETED"


def test_an_interrupt_from_the_keyboard_fails_the_run() -> None:
    ended = programs.run_until_ready("start_run()", programs.SIGINT)
    assert "KeyboardInterrupt" in ended.errors
    assert last_phase() == "FAILED"
    assert programs.kept_run()["errorDetails"] == "KeyboardInterrupt"


def test_sigterm_fails_the_run_and_ends_the_process_by_the_signal() -> None:
    ended = programs.run_until_ready("start_run()", programs.SIGTERM)
    assert ended.code == -signal.SIGTERM
    assert last_phase() == "FAILED"
    assert programs.kept_run()["errorDetails"] == "SIGTERM"
    assert programs.phases() == ["ACTIVE", "FAILED"]


def test_the_users_sigterm_handler_runs_too_and_decides_the_outcome() -> None:
    ended = programs.run_until_ready(
        """
        def save(*_):
            print("saved", flush=True)
            sys.exit(0)
        signal.signal(signal.SIGTERM, save)
        start_run()
        """,
        programs.SIGTERM,
    )
    assert (ended.code, ended.output) == (0, "saved\n")
    assert last_phase() == "COMPLETED"
    reasons = [entry.payload.get("reason", "") for entry in kept_entries("mlrun_process")]
    assert any("SIGTERM" in reason for reason in reasons)


def test_a_sigterm_handler_that_the_user_installs_later_is_never_replaced() -> None:
    ended = programs.run_until_ready(
        """
        run = start_run()
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(5))
        start_run("another")
        run.finish()
        """,
        programs.SIGTERM,
    )
    assert ended.code == 5
    assert [run["runPhase"] for run in programs.kept_runs()] == ["COMPLETED", "FAILED"]


def test_a_signal_that_is_ignored_stays_so() -> None:
    ended = programs.run("""
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        start_run()
        os.kill(os.getpid(), signal.SIGTERM)
    """)
    assert ended.code == 0
    assert last_phase() == "COMPLETED"


@pytest.mark.skipif("sys.platform != 'linux'", reason="only Linux shows handlers in C")
def test_a_handler_of_c_is_left_alone() -> None:
    ended = programs.run("""
        import faulthandler
        faulthandler.register(signal.SIGTERM)
        start_run()
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.05)
    """)
    assert ended.code == 0, ended.errors
    assert "most recent call first" in ended.errors
    assert last_phase() == "COMPLETED"


def test_sigterm_while_the_run_ends_does_not_deadlock() -> None:
    process = programs.start(f"""
        from google_cloud_mldiagnostics._run.lifecycle import Lifecycle
        start_run({programs.PATIENT})
        end = Lifecycle._do_end
        def slowly(self, *arguments):
            ready()
            sys.stdin.readline()
            time.sleep(0.3)
            end(self, *arguments)
        Lifecycle._do_end = slowly
        sys.exit()
    """)
    programs.await_line(process, "ready")
    process.send_signal(signal.SIGTERM)
    ended = programs.end(process, input_text="go on\n")
    assert ended.code == -signal.SIGTERM
    assert last_phase() == "COMPLETED"  # It ended before the signal.


def test_sigterm_while_the_program_holds_the_locks_of_logging_does_not_deadlock() -> None:
    ended = programs.run_until_ready(
        """
        import logging
        start_run()
        logging.basicConfig(level=logging.DEBUG)
        logging._lock.acquire()
        logging.root.handlers[0].lock.acquire()
        """,
        programs.SIGTERM,
    )
    assert ended.code == -signal.SIGTERM
    assert last_phase() == "FAILED"


@pytest.mark.parametrize("ending", ["os.kill(os.getpid(), signal.SIGKILL)", "os._exit(0)", "os.abort()"])
def test_a_run_without_a_recorded_end_is_failed_by_the_next_attempt(ending: str) -> None:
    programs.run(f"start_run(); {ending}", RUN_WORKLOAD_ID="w")
    assert last_phase() == "ACTIVE"
    programs.run("start_run()", RUN_WORKLOAD_ID="w")
    first, second = programs.kept_run()["attempts"]
    assert (first["phase"], first["reason"]) == ("FAILED", END_NOT_RECORDED)
    assert (second["phase"], second["number"]) == ("COMPLETED", 2)
    assert [entry.payload["attempt"] for entry in kept_entries("mlrun_process")] == [1, 2, 2]


def test_the_exit_reason_of_an_attempt_comes_from_the_companion() -> None:
    programs.run(
        """
        from pathlib import Path
        from ml_diagnostics_common.journal import Journal
        from ml_diagnostics_common.environment import identity
        start_run()
        root = Path(os.environ["ML_DIAGNOSTICS_DIR"])
        journal = Journal("tpu.googleapis.com/runtime_monitor", root=root, labels=identity().labels())
        journal.append({"kind": "job_ended", "how": "out_of_memory", "message": "The job was killed: out of memory"})
        os._exit(9)
        """,
        RUN_WORKLOAD_ID="w",
    )
    second = programs.start("start_run(); sys.stdin.readline()", RUN_WORKLOAD_ID="w")
    wait_until(lambda: programs.kept_run()["attempts"][0].get("reason") == "The job was killed: out of memory")
    assert programs.end(second, input_text="go on\n").code == 0


def test_a_failed_run_that_is_started_again_is_active_and_then_completed() -> None:
    programs.run("start_run(); sys.exit(1)", RUN_WORKLOAD_ID="w")
    programs.run("start_run(); assert __import__('json')", RUN_WORKLOAD_ID="w")
    run = programs.kept_run()
    assert [attempt["phase"] for attempt in run["attempts"]] == ["FAILED", "COMPLETED"]
    assert run["labels"]["attempt"] == "2"
    assert "errorDetails" not in run


def can_start_as_the_first_process() -> bool:
    command = ["unshare", "--fork", "--pid", "--mount-proc", "true"]
    return shutil.which("unshare") is not None and subprocess.run(command, capture_output=True).returncode == 0


@pytest.mark.skipif(not can_start_as_the_first_process(), reason="this user may not start a container")
def test_sigterm_does_not_end_a_run_if_the_process_survives_it() -> None:
    """The first process of a container survives a signal that it has no handler for."""
    ended = programs.run(
        """
        start_run()
        os.kill(1, signal.SIGTERM)
        time.sleep(0.05)
        print(os.getpid(), flush=True)
        """,
        prefix=["unshare", "--fork", "--pid", "--mount-proc"],
    )
    assert (ended.code, ended.output) == (0, "1\n"), ended.errors
    assert last_phase() == "COMPLETED"
    assert any("SIGTERM" in entry.payload.get("reason", "") for entry in kept_entries("mlrun_process"))


# --- Threads and forks --------------------------------------------------------------------------------


def test_a_run_that_is_over_at_once_has_its_configs() -> None:
    ended = programs.run(
        """
        import jax
        start_run()
        jax.devices()
        """,
        JAX_PLATFORMS="cpu",
    )
    assert ended.code == 0
    configs = programs.kept_run()["configs"]
    assert configs["softwareConfigs"]["framework"] == "JAX"
    assert configs["hardwareConfigs"]["device_type"] == "cpu"


def test_a_run_can_start_off_the_main_thread() -> None:
    ended = programs.run("""
        thread = threading.Thread(target=start_run)
        thread.start()
        thread.join()
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    """)
    assert (ended.code, ended.errors) == (0, "")
    assert last_phase() == "COMPLETED"


def test_a_forked_child_reports_nothing_however_it_ends() -> None:
    ended = programs.run("""
        run = start_run()
        for ending in ("sys.exit(1)", "1/0", "os.kill(os.getpid(), signal.SIGTERM)", "run.finish('FAILED')"):
            pid = os.fork()
            if pid == 0:
                sys.stderr = open(os.devnull, "w")
                exec(ending)
                sys.exit(0)
            print(os.waitpid(pid, 0)[1], flush=True)
    """)
    assert ended.code == 0, ended.errors
    assert ended.output.split() == ["256", "256", str(int(signal.SIGTERM)), "0"]
    assert last_phase() == "COMPLETED"
    assert programs.phases() == ["ACTIVE", "COMPLETED"]


def test_a_pool_of_forked_workers_ends_as_usual() -> None:
    ended = programs.run("""
        import multiprocessing
        start_run()
        with multiprocessing.get_context("fork").Pool(2) as pool:
            print(sum(pool.map(abs, range(10))))
    """)
    assert (ended.code, ended.output) == (0, "45\n"), ended.errors
    assert last_phase() == "COMPLETED"


def test_a_failed_worker_process_fails_the_run_which_process_0_does_not_overwrite() -> None:
    job = {"RUN_WORKLOAD_ID": "w", "TORCHELASTIC_RUN_ID": "t", "JAX_NUM_PROCESSES": "2"}
    first = programs.start("start_run(); ready(); sys.stdin.readline()", JAX_PROCESS_ID="0", **job)
    programs.await_line(first, "ready")
    assert programs.run("start_run(); sys.exit(7)", JAX_PROCESS_ID="1", **job).code == 7
    assert last_phase() == "FAILED"
    assert programs.end(first, input_text="go on\n").code == 0
    run = programs.kept_run()
    assert (run["runPhase"], run["errorDetails"], len(run["attempts"])) == ("FAILED", "sys.exit(7)", 1)
    assert {process["process_index"] for process in run["attempts"][0]["processes"]} == {0, 1}


def test_each_process_records_the_versions_of_its_host_and_the_run_has_those_of_process_0() -> None:
    job = {"RUN_WORKLOAD_ID": "w", "TORCHELASTIC_RUN_ID": "t", "JAX_NUM_PROCESSES": "2"}
    flags = {"0": "--xla_cpu_enable_fast_math=false", "1": "--xla_cpu_enable_fast_math=true"}
    first = programs.start(
        "start_run(); ready(); sys.stdin.readline()", JAX_PROCESS_ID="0", XLA_FLAGS=flags["0"], **job
    )
    programs.await_line(first, "ready")
    assert programs.run("start_run()", JAX_PROCESS_ID="1", XLA_FLAGS=flags["1"], **job).code == 0
    assert programs.end(first, input_text="go on\n").code == 0
    recorded = {
        entry.context.labels["process_index"]: entry.payload["softwareConfigs"]["xla_flags"]
        for entry in kept_entries("mlrun_configs")
        if "softwareConfigs" in entry.payload
    }
    assert recorded == flags
    assert programs.kept_run()["configs"]["softwareConfigs"]["xla_flags"] == flags["0"]


def test_a_run_that_another_thread_has_finished_leaves_the_next_one_its_end() -> None:
    ended = programs.run_until_ready(
        """
        thread = threading.Thread(target=start_run("first").finish)
        thread.start()
        thread.join()
        start_run("second")
        """,
        programs.SIGTERM,
    )
    assert ended.code == -signal.SIGTERM
    assert [run["runPhase"] for run in programs.kept_runs()] == ["COMPLETED", "FAILED"]


def test_a_forked_child_may_have_a_run_of_its_own() -> None:
    ended = programs.run("""
        start_run("parent")
        pid = os.fork()
        if pid == 0:
            start_run("child")
            sys.exit(3)
        os.waitpid(pid, 0)
    """)
    assert ended.code == 0, ended.errors
    assert {run["displayName"]: run["runPhase"] for run in programs.kept_runs()} == {
        "parent": "COMPLETED",
        "child": "FAILED",
    }


def test_processes_of_one_host_share_an_attempt_without_a_workload_id() -> None:
    job = {"RUN_WORKLOAD_ID": "w", "JAX_NUM_PROCESSES": "2"}
    first = programs.start("start_run(); ready(); sys.stdin.readline()", JAX_PROCESS_ID="0", **job)
    programs.await_line(first, "ready")
    assert programs.run("start_run()", JAX_PROCESS_ID="1", **job).code == 0
    assert programs.end(first, input_text="go on\n").code == 0
    (attempt,) = programs.kept_run()["attempts"]
    assert (attempt["phase"], len(attempt["processes"])) == ("COMPLETED", 2)


# --- Ends that the user asks for ----------------------------------------------------------------------


def test_finish_ends_the_run_and_removes_all_hooks() -> None:
    ended = programs.run("""
        before = sys.exit, exit, quit, sys.excepthook, signal.getsignal(signal.SIGTERM)
        run = start_run()
        assert before[0] is not sys.exit
        run.finish()
        assert run.run_phase.value == "COMPLETED"
        assert before == (sys.exit, exit, quit, sys.excepthook, signal.getsignal(signal.SIGTERM))
        run.finish("FAILED")
        sys.exit(3)
    """)
    assert ended.code == 3, ended.errors
    assert last_phase() == "COMPLETED"


def test_an_exception_in_the_block_fails_the_run_and_propagates() -> None:
    ended = programs.run("""
        error = ValueError("in the block")
        try:
            with start_run() as run:
                raise error
        except ValueError as caught:
            assert caught is error
        assert run.run_phase.value == "FAILED"
        with start_run("another"):
            pass
    """)
    assert ended.code == 0, ended.errors
    assert [run["runPhase"] for run in programs.kept_runs()] == ["FAILED", "COMPLETED"]


def test_another_run_completes_the_one_before() -> None:
    programs.run("start_run('first'); start_run('second'); sys.exit(1)")
    assert [(run["displayName"], run["runPhase"]) for run in programs.kept_runs()] == [
        ("first", "COMPLETED"),
        ("second", "FAILED"),
    ]
