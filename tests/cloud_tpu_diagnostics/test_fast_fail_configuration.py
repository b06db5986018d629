"""Fast-fail is off by default, checked where it is turned on, and refused where it would do harm."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from types import ModuleType
from typing import Any

import pytest
from cloud_tpu_diagnostics import diagnose
from cloud_tpu_diagnostics._collect import fast_fail
from cloud_tpu_diagnostics._collect.fast_fail import JobFastFail, refusal
from cloud_tpu_diagnostics._config import plan_of
from cloud_tpu_diagnostics._fast_fail.meeting import FOLDER, LAUNCH
from cloud_tpu_diagnostics.configuration.debug_configuration import DebugConfig
from cloud_tpu_diagnostics.configuration.diagnostic_configuration import DiagnosticConfig
from cloud_tpu_diagnostics.configuration.fast_fail_configuration import FastFailConfig, checked
from cloud_tpu_diagnostics.configuration.first_cause import FirstCause
from cloud_tpu_diagnostics.configuration.hang_configuration import HangConfig
from cloud_tpu_diagnostics.exceptions import ConfigurationError

from ..waiting import run_program
from .fast_fail_jobs import AS_PROCESS_1, can_be_process_1


def nothing(_: object) -> None:
    pass


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"enabled": 1}, "enabled is 1; give True or False"),
        ({"hang": "yes"}, "hang is 'yes'; give True or False"),
        ({"grace_seconds": -1}, "grace_seconds is -1"),
        ({"grace_seconds": math.inf}, "grace_seconds is inf"),
        ({"grace_seconds": True}, "grace_seconds is True"),
        ({"exit_code": 0}, "exit_code is 0; give a whole number from 1 to 255"),
        ({"exit_code": 256}, "exit_code is 256"),
        ({"exit_code": 76.0}, "exit_code is 76.0"),
        ({"on_peer_failure": "call"}, "on_peer_failure is 'call'; give a function"),
        ({"on_peer_failure": nothing}, "on_peer_failure needs grace_seconds above 0"),
    ],
)
def test_a_wrong_value_is_refused_with_its_name(values: dict[str, Any], message: str) -> None:
    config = FastFailConfig(**values)
    with pytest.raises(ConfigurationError, match=message):
        checked(config)
    with (
        pytest.raises(ConfigurationError, match=message),
        diagnose(DiagnosticConfig(DebugConfig(fast_fail_config=FastFailConfig(**{"enabled": True, **values})))),
    ):
        pytest.fail("the block was entered")


def test_to_end_hanging_jobs_needs_hang_detection() -> None:
    on = FastFailConfig(enabled=True, hang=True)
    with pytest.raises(ConfigurationError, match="needs hang detection"):
        plan_of(None, None, None, on)
    assert plan_of(None, HangConfig(enabled=True), None, on).fast_fail == on


def test_it_is_off_unless_it_is_turned_on(monkeypatch: pytest.MonkeyPatch) -> None:
    on = FastFailConfig(enabled=True, grace_seconds=2.0)
    assert plan_of(None, None).fast_fail is None
    assert plan_of(None, None, None, FastFailConfig()).fast_fail is None
    assert plan_of(None, None, None, on).fast_fail == on
    assert DebugConfig().fast_fail_config is None
    monkeypatch.setenv("ML_DIAGNOSTICS_FAST_FAIL", "1")
    assert plan_of(None, None).fast_fail == FastFailConfig(enabled=True)
    assert plan_of(None, None, None, FastFailConfig(grace_seconds=3.0)).fast_fail == FastFailConfig(grace_seconds=3.0)
    monkeypatch.setenv("ML_DIAGNOSTICS_FAST_FAIL", "0")
    assert plan_of(None, None, None, on).fast_fail is None
    monkeypatch.setenv("ML_DIAGNOSTICS_FAST_FAIL", "yes")
    with pytest.raises(ConfigurationError, match="ML_DIAGNOSTICS_FAST_FAIL is 'yes'; set it to 1"):
        plan_of(None, None)


def test_a_block_without_it_imports_nothing_of_it() -> None:
    printed = run_program("""
import sys
from cloud_tpu_diagnostics import diagnose
with diagnose(hangs=True):
    pass
print([name for name in sys.modules if "_fast_fail" in name or name.endswith(".agreement")])
""")
    assert printed == "[]\n"


def test_a_first_cause_is_the_same_as_values_of_json() -> None:
    cause = FirstCause((1, 2), ("a", "b"), "signal", "SIGKILL", None, None, 7, "proven", 1, "process 1 on a ...")
    assert FirstCause.from_json(cause.to_json()) == cause
    assert FirstCause.from_json({}) == FirstCause((), (), *[None] * 8)  # type: ignore[arg-type]


# --- Refusals -------------------------------------------------------------------------------------------


def test_a_job_that_continues_after_a_failure_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    reasons = {"pathwaysutils": "Pathways", "ml_goodput_measurement.goodput_elastic": "elastic"}
    assert refusal() is None
    for name, reason in reasons.items():
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, name, ModuleType(name))
            assert reason in (refusal() or "")
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "jax", None)
        patch.setenv("JAX_PLATFORMS", "proxy,cpu")
        assert "Pathways" in (refusal() or "")


def test_a_recoverable_job_of_jax_is_left_alone() -> None:
    printed = run_program("""
import jax
from cloud_tpu_diagnostics._collect.fast_fail import refusal
print(refusal())
if hasattr(jax.config, "jax_enable_recoverability"):
    jax.config.update("jax_enable_recoverability", True)
    print(refusal())
""")
    if printed == "None\n":
        pytest.skip("this version of JAX has no jax_enable_recoverability")
    assert printed.startswith("None\njax_enable_recoverability is set")


_NOTES_WARNINGS = """
import logging, threading
has_warned = threading.Event()
class Noting(logging.Handler):
    def emit(self, record):
        has_warned.set()
"""


@can_be_process_1
def test_process_1_of_a_container_is_refused_with_the_remedy() -> None:
    program = "from cloud_tpu_diagnostics._collect.fast_fail import refusal; print(refusal())"
    printed = subprocess.run(
        [*AS_PROCESS_1, sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout
    assert "start it with: python -m cloud_tpu_diagnostics run -- COMMAND" in printed


def test_a_refusal_is_one_warning_and_the_job_continues() -> None:
    program = """
import logging, sys, time
from types import ModuleType
logging.basicConfig(stream=sys.stdout, format="%(levelname)s %(message)s", force=True)
logging.getLogger().addHandler(Noting())
sys.modules["pathwaysutils"] = ModuleType("pathwaysutils")
from cloud_tpu_diagnostics import diagnose
with diagnose(fast_fail=True):
    assert has_warned.wait(20)
with diagnose(fast_fail=True):
    time.sleep(1)
print("goes on")
"""
    position = {"JAX_PROCESS_ID": "0", "JAX_NUM_PROCESSES": "2", FOLDER: "shared", LAUNCH: "1"}
    printed = run_program(_NOTES_WARNINGS + program, env={**os.environ, **position})
    assert printed.count("WARNING Fast-fail is off in this process: Pathways runs the job") == 1
    assert printed.endswith("goes on\n")


def test_a_folder_is_refused_without_an_id_of_the_launch() -> None:
    """Another job of the same name may use it as well: each would end the other."""
    program = """
import logging, sys, time
logging.basicConfig(stream=sys.stdout, format="%(levelname)s %(message)s", force=True)
logging.getLogger().addHandler(Noting())
from cloud_tpu_diagnostics import diagnose
with diagnose(fast_fail=True):
    assert has_warned.wait(20)
print("goes on")
"""
    position = {"JAX_PROCESS_ID": "0", "JAX_NUM_PROCESSES": "2", FOLDER: "shared", "TORCHELASTIC_RUN_ID": "none"}
    printed = run_program(_NOTES_WARNINGS + program, env={**os.environ, **position})
    assert printed.count(f"WARNING Fast-fail does not use {FOLDER}") == 1
    assert f"Set {LAUNCH} to a text" in printed
    assert printed.endswith("goes on\n")


def test_the_coordinator_is_asked_seldom_if_process_0_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("JAX_PROCESS_ID", "1"), ("JAX_NUM_PROCESSES", "2"), (FOLDER, "shared"), (LAUNCH, "1")):
        monkeypatch.setenv(name, value)
    job = JobFastFail(FastFailConfig(enabled=True), nothing, lambda: None)
    assert job._search() == 1.0
    monkeypatch.setattr(fast_fail, "_NO_HUB_SECONDS", 0.0)
    assert (job._search() or 0.0) >= 60.0
