"""A process that is forked while a thread of ours imports something can import that too."""

import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

PROGRAM = """
import os, signal, sys, threading, time
sys.path.insert(0, {folder!r})
from ml_diagnostics_common.process_hooks import import_clients, import_undisturbed

def child_imports(name):
    pid = os.fork()
    if pid == 0:
        signal.alarm(20)
        __import__(name)
        os._exit(0)
    return os.waitpid(pid, 0)[1]
"""


@pytest.fixture
def run(tmp_path: Path) -> Any:
    (tmp_path / "slow_to_import.py").write_text("import logging, time; time.sleep(0.5); logging.getLogger('x')")

    def run(program: Any) -> Any:
        text = PROGRAM.format(folder=str(tmp_path)) + textwrap.dedent(program)
        return subprocess.run(
            [sys.executable, "-W", "ignore", "-c", text], capture_output=True, text=True, timeout=60, check=False
        )

    return run


@pytest.mark.skipif("not hasattr(__import__('os'), 'fork')", reason="this system does not fork")
def test_a_fork_waits_until_an_import_is_done_and_the_child_can_import_it_too(run: Any) -> None:
    ended = run("""
        thread = threading.Thread(target=import_undisturbed, args=("slow_to_import",))
        thread.start()
        time.sleep(0.1)
        print(child_imports("slow_to_import"), "slow_to_import" in sys.modules)
    """)
    assert ended.stdout == "0 True\n", ended.stderr


@pytest.mark.skipif("not hasattr(__import__('os'), 'fork')", reason="this system does not fork")
def test_an_import_that_takes_too_long_holds_no_fork_up_for_ever(run: Any) -> None:
    ended = run("""
        from ml_diagnostics_common import process_hooks
        process_hooks._WAIT_SECONDS = 0.05
        threading.Thread(target=import_undisturbed, args=("slow_to_import",)).start()
        while "slow_to_import" not in sys.modules or "logging" not in sys.modules:
            time.sleep(0.001)
        print(child_imports("json"), "logging" in sys.modules)
        print(child_imports("json"))
    """)
    assert ended.stdout == "0 True\n0\n", ended.stderr


@pytest.mark.skipif("not hasattr(__import__('os'), 'fork')", reason="this system does not fork")
def test_forks_of_several_threads_and_imports_of_children_go_on(run: Any) -> None:
    ended = run("""
        statuses = []
        def fork_often():
            for _ in range(20):
                statuses.append(child_imports("json"))
        threads = [threading.Thread(target=fork_often) for _ in range(3)]
        threads += [threading.Thread(target=lambda: [import_undisturbed("json") for _ in range(1000)])]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
        pid = os.fork()
        if pid == 0:
            import_undisturbed("slow_to_import")
            os._exit(child_imports("json"))
        print(sum(statuses), len(statuses), os.waitpid(pid, 0)[1])
    """)
    assert ended.stdout == "0 60 0\n", ended.stderr


def test_what_is_not_installed_is_left_to_those_who_need_it(run: Any) -> None:
    ended = run("""
        import_undisturbed("no_such_module", "json.nothing", "decimal")
        print("decimal" in sys.modules)
        import_clients()
    """)
    assert (ended.stdout, ended.returncode) == ("True\n", 0), ended.stderr
