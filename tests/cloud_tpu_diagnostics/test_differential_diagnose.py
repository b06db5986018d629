"""The documented scenarios, run with the public library of the same name and with ours: users get the same.

What ours does differently, because theirs is why it exists, is not compared: other threads, hangs, and leaving at once.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ..reference_environment import DIAGNOSTICS, ReferenceUnavailableError, reference_python

Compare = Callable[[str], tuple[Any, Any]]

_HEAD = """
import dataclasses, faulthandler, importlib, json, logging, os, pathlib, re, signal, stat, sys, time
from cloud_tpu_diagnostics import diagnostic
from cloud_tpu_diagnostics.configuration import debug_configuration
from cloud_tpu_diagnostics.configuration import diagnostic_configuration
from cloud_tpu_diagnostics.configuration import stack_trace_configuration

messages = []

class Messages(logging.Handler):
    def emit(self, record):
        messages.append([record.levelname, record.getMessage()])

logging.basicConfig(level=logging.INFO, handlers=[Messages()])

def config(**traces):
    return diagnostic_configuration.DiagnosticConfig(debug_config=debug_configuration.DebugConfig(
        stack_trace_config=stack_trace_configuration.StackTraceConfig(**traces)))

def train_for_two_snapshots():
    end = time.monotonic() + 2.4
    while time.monotonic() < end:
        time.sleep(0.01)

def answer(**what):
    print(json.dumps(what))
"""


@pytest.fixture(scope="module")
def theirs() -> Path:
    """Return the Python with the public library; without it the tests that compare are skipped."""
    try:
        return reference_python(DIAGNOSTICS)
    except ReferenceUnavailableError as error:
        pytest.skip(f"the reference cannot be installed here: {error}")


@pytest.fixture
def compare(theirs: Path) -> Compare:
    """Run a program with theirs and with ours; return each answer, and what it wrote to stderr."""

    def ask_both(program: str) -> tuple[Any, Any]:
        jobs = [
            subprocess.Popen(
                [python, "-c", _HEAD + program],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env={**os.environ, "PYTHONSAFEPATH": "1"},
            )
            for python in (theirs, sys.executable)
        ]
        answers = []
        for job in jobs:
            out, err = job.communicate(timeout=30)
            assert job.returncode == 0, err
            answers.append({**json.loads(out), "stderr": err})
        return answers[0], answers[1]

    return ask_both


_SURFACE = """
def described(thing):
    if not dataclasses.is_dataclass(thing):
        return "function" if callable(thing) else type(thing).__name__
    return {
        "frozen": thing.__dataclass_params__.frozen,
        "repr": repr(thing()),
        "fields": [[field.name, str(field.type), repr(field.default)] for field in dataclasses.fields(thing)],
    }

modules = {
    "cloud_tpu_diagnostics.diagnostic": ["diagnose"],
    "cloud_tpu_diagnostics.src.debug": [],
    "cloud_tpu_diagnostics.src.diagnose": ["diagnose"],
    "cloud_tpu_diagnostics.src.stack_trace": [],
    "cloud_tpu_diagnostics.src.util.default": [],
}
for package in ("cloud_tpu_diagnostics.configuration", "cloud_tpu_diagnostics.src.config"):
    modules[package + ".debug_configuration"] = ["DebugConfig"]
    modules[package + ".diagnostic_configuration"] = ["DiagnosticConfig"]
    modules[package + ".stack_trace_configuration"] = ["StackTraceConfig"]

found = {}
for name, wanted in modules.items():
    try:
        module = importlib.import_module(name)
    except ImportError:  # The package `configuration` offers modules that have another name.
        package, _, last = name.rpartition(".")
        module = getattr(importlib.import_module(package), last)
    public = [each for each in dir(module) if each[0] != "_" and
              getattr(getattr(module, each), "__module__", "").startswith("cloud_tpu_diagnostics")]
    for each in public:
        found[f"{name}.{each}"] = described(getattr(module, each))
    assert set(wanted) <= set(public), name
answer(found=found)
"""


_FUNCTIONS = """
import inspect

def shown(value):
    return str(inspect.signature(value)) if callable(value) else repr(value)

found = {}
for name in ("debug", "diagnose", "stack_trace", "util.default"):
    module = importlib.import_module(f"cloud_tpu_diagnostics.src.{name}")
    for each, value in vars(module).items():
        own = getattr(value, "__module__", "cloud_tpu_diagnostics").startswith("cloud_tpu_diagnostics")
        if each[0] != "_" and own and not inspect.ismodule(value) and each not in ("annotations", "Final"):
            found[f"{name}.{each}"] = re.sub(r": [^,)]+|( ->).*", "", shown(value)) if callable(value) else shown(value)
answer(found=found)
"""


def test_the_functions_and_constants_of_src_have_the_same_names_parameters_and_values(compare: Compare) -> None:
    theirs, ours = compare(_FUNCTIONS)
    assert len(theirs["found"]) >= 12
    # Keywords of ours that the public package does not have change no call that it accepts.
    shown = {name: re.sub(r", \*, .*\)", ")", text) for name, text in ours["found"].items()}
    assert {name: shown.get(name) for name in theirs["found"]} == theirs["found"]


def test_the_functions_of_src_turn_faulthandler_and_signals_on_and_off_like_the_public_ones(compare: Compare) -> None:
    theirs, ours = compare(
        """
from cloud_tpu_diagnostics.src import debug, stack_trace
traces = stack_trace_configuration.StackTraceConfig(collect_stack_trace=True)
off = stack_trace_configuration.StackTraceConfig()
seen = []
def note(function, config):
    seen.append([function.__name__, function(config), faulthandler.is_enabled()])
for config in (traces, off):
    note(stack_trace.enable_stack_trace_dumping, config)
    note(stack_trace.disable_stack_trace_dumping, config)
for config in (debug_configuration.DebugConfig(traces), debug_configuration.DebugConfig(off)):
    note(debug.start_debugging, config)
    note(debug.stop_debugging, config)
answer(seen=seen)
""".replace("StackTraceConfig(collect_stack_trace=True)", "StackTraceConfig(True, False, 1)")
    )
    assert ours["seen"] == theirs["seen"]
    assert [enabled for *_, enabled in ours["seen"]] == [True, False, True, False, True, False, False, False]


def test_a_handler_made_for_a_file_writes_the_same_header_and_its_own_stack(compare: Compare) -> None:
    theirs, ours = compare(
        """
from cloud_tpu_diagnostics.src import stack_trace
import tempfile
with tempfile.TemporaryFile() as file:
    def waits_here():
        stack_trace.user_signal_handler_wrapper(file, 7)(10, None)
    waits_here()
    file.seek(0)
    lines = file.read().decode().splitlines()
answer(header=lines[0], has_frame=any("in waits_here" in line for line in lines))
"""
    )
    assert ours == theirs
    assert ours["has_frame"]


def test_every_documented_import_is_there_with_the_same_fields_and_defaults(compare: Compare) -> None:
    theirs, ours = compare(_SURFACE)
    assert len(theirs["found"]) >= 8
    for name, what in theirs["found"].items():
        if name.endswith(".diagnose"):
            assert name in ours["found"]
        if not isinstance(what, dict):
            continue  # Other functions in `src` are what theirs is made of.
        mine = ours["found"][name]
        assert mine["frozen"] == what["frozen"], name
        own = [field for field in mine["fields"] if field[0] not in ("hang_config", "fast_fail_config")]  # Ours alone.
        assert [(field, default) for field, _, default in own] == [
            (field, default) for field, _, default in what["fields"]
        ]
        assert mine["repr"].replace(", hang_config=None", "").replace(", fast_fail_config=None", "") == what["repr"]


@pytest.mark.parametrize(
    "nothing",
    [
        "diagnostic_configuration.DiagnosticConfig()",
        "diagnostic_configuration.DiagnosticConfig(debug_config=debug_configuration.DebugConfig())",
        "config()",
        "config(collect_stack_trace=False, stack_trace_to_cloud=True, stack_trace_interval_seconds=1)",
    ],
)
def test_with_collection_off_neither_package_does_anything(compare: Compare, nothing: str) -> None:
    theirs, ours = compare(
        f"""
folder = pathlib.Path("/tmp/debugging")
before = set(folder.glob("*"))  # An earlier process may have had this pid.
with diagnostic.diagnose({nothing}):
    inside = [faulthandler.is_enabled(), signal.getsignal(signal.SIGUSR1) == signal.SIG_DFL]
mine = [str(file) for file in folder.glob(f"*_{{os.getpid()}}.txt") if file not in before]
answer(messages=messages, inside=inside, mine=mine)
"""
    )
    assert ours == theirs
    assert ours["stderr"] == ""


def test_on_the_console_both_write_the_same_header_and_log_it(compare: Compare) -> None:
    theirs, ours = compare(
        """
with diagnostic.diagnose(config(collect_stack_trace=True, stack_trace_interval_seconds=1)):
    inside = faulthandler.is_enabled()
    train_for_two_snapshots()
answer(messages=messages, inside=inside, after=faulthandler.is_enabled())
"""
    )
    assert ours["messages"] == _first_messages(theirs["messages"])
    assert (ours["inside"], ours["after"]) == (theirs["inside"], theirs["after"]) == (True, False)
    assert _headers(ours["stderr"]) == _headers(theirs["stderr"]) != set()
    assert "in train_for_two_snapshots" in theirs["stderr"]
    assert "in train_for_two_snapshots" in ours["stderr"]


def test_to_the_cloud_both_write_files_of_the_same_name_in_the_same_folder(compare: Compare) -> None:
    theirs, ours = compare(
        """
with diagnostic.diagnose(config(collect_stack_trace=True, stack_trace_to_cloud=True, stack_trace_interval_seconds=1)):
    train_for_two_snapshots()
path = pathlib.Path(re.search(r"in: (.*)", messages[0][1])[1])
give_up = time.monotonic() + 10
while "in train" not in path.read_text(errors="replace") and time.monotonic() < give_up:
    time.sleep(0.05)  # Ours is written by another process.
text, mode = path.read_text(errors="replace"), stat.S_IMODE(path.stat().st_mode)
path.unlink()
answer(messages=messages, path=str(path), text=text, mode=mode)
"""
    )
    name = r"/tmp/debugging/stack_trace_\d{4}_\d\d_\d\d_\d\d_\d\d_\d\d"
    assert re.fullmatch(rf"{name}\.txt", theirs["path"])
    assert re.fullmatch(
        rf"{name}_[^/]+\.txt", ours["path"]
    )  # With host and pid: files of the public package overwrite each other.
    log_text = "Stack trace will be written in: "
    assert ours["messages"] == [["INFO", log_text + ours["path"]]]
    assert _first_messages(theirs["messages"]) == [["INFO", log_text + theirs["path"]]]
    assert ours["mode"] == theirs["mode"]
    assert _headers(ours["text"]) == _headers(theirs["text"]) != set()
    assert "in train_for_two_snapshots" in theirs["text"]
    assert "in train_for_two_snapshots" in ours["text"]
    assert ours["stderr"] == theirs["stderr"]


def test_a_signal_from_outside_leaves_both_alive_with_a_trace(compare: Compare) -> None:
    theirs, ours = compare(
        """
def trained():
    os.kill(os.getpid(), signal.SIGUSR1)
    time.sleep(0.1)

with diagnostic.diagnose(config(collect_stack_trace=True, stack_trace_interval_seconds=1)):
    trained()
answer()
"""
    )
    assert "in trained" in theirs["stderr"]
    assert "in trained" in ours["stderr"]


def test_an_exception_of_the_block_leaves_both(compare: Compare) -> None:
    theirs, ours = compare(
        """
try:
    with diagnostic.diagnose(config(collect_stack_trace=True, stack_trace_interval_seconds=600)):
        raise KeyError("theirs")
except KeyError as error:
    answer(error=repr(error))
    sys.stdout.flush()
    os._exit(0)
"""
    )
    assert ours["error"] == theirs["error"]


def _headers(text: str) -> set[str]:
    return set(re.findall(r"^INFO: Not a crash\..*$", text, re.MULTILINE))


def _first_messages(messages: list[list[str]]) -> list[list[str]]:
    """Leave out the messages of theirs on the wait for its thread at the end."""
    return [each for each in messages if "daemon thread" not in each[1]]
