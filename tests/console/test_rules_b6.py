"""B6: a command, a file, a module or a variable that is missing is named, from what the process printed or raised."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ml_diagnostics_common.raised_exception import describe_exception
from ml_diagnostics_common.story import Confidence
from ml_diagnostics_console._facts.facts import ConsoleText, Facts, ProcessFacts
from ml_diagnostics_console._rules.b6_cannot_start import RULE
from ml_diagnostics_console.doctor import judge
from ml_diagnostics_console.verdict import Blame, NotChecked, Verdict, VerdictClass

from .made_facts import after, facts, process, ref

ENVIRON = """Traceback (most recent call last):
  File "/app/train.py", line 2, in <module>
    print(os.environ["DATA_DIR"])
  File "<frozen os>", line 679, in __getitem__
KeyError: 'DATA_DIR'
"""
ENVIRON_310 = ENVIRON.replace("<frozen os>", "/usr/lib/python3.10/os.py")
OF_A_DICT = """Traceback (most recent call last):
  File "/app/train.py", line 2, in <module>
    print(settings["DATA_DIR"])
KeyError: 'DATA_DIR'
"""
MODULE = """Traceback (most recent call last):
  File "/app/train.py", line 1, in <module>
    import flax.linen
ModuleNotFoundError: No module named 'flax'
"""


def printed(text: str, *, stream: str = "err") -> tuple[ConsoleText, ...]:
    return (ConsoleText(after(60), stream, "end", text, ref("the last lines")),)


def failed(index: int = 0, *, code: int = 1, text: str = "", stream: str = "err", **fields: Any) -> ProcessFacts:
    return process(index, end=f"exit: {code}", console=printed(text, stream=stream) if text else (), **fields)


def verdict(*processes: ProcessFacts) -> Verdict:
    found = RULE.judge(facts(list(processes)))
    assert isinstance(found, Verdict)
    return found


@pytest.mark.parametrize(
    ("code", "text", "sentence"),
    [
        (127, 'exec: "pythn": executable file not found in $PATH', "the command pythn is missing"),
        (127, "bash: line 1: pythn: command not found", "the command pythn is missing"),
        (127, "sh: 1: pythn: not found", "the command pythn is missing"),
        (127, "env: 'pythn': No such file or directory", "the command pythn is missing"),
        (127, "bash: line 1: /app/run.sh: No such file or directory", "the command /app/run.sh is missing"),
        (126, "bash: line 1: /app/run.sh: Permission denied", "the executable /app/run.sh is missing"),
        (
            2,
            "python: can't open file '/app/train.py': [Errno 2] No such file or directory",
            "the file /app/train.py is missing",
        ),
        (1, "/usr/bin/python: No module named maxtext", "the module maxtext is missing"),
        (1, MODULE, "the module flax is missing"),
        (1, ENVIRON, "the environment variable DATA_DIR is missing"),
        (1, ENVIRON_310, "the environment variable DATA_DIR is missing"),
        (1, "train.sh: line 3: DATA_DIR: unbound variable", "the environment variable DATA_DIR is missing"),
    ],
)
def test_what_is_missing_is_named_from_the_last_lines(code: int, text: str, sentence: str) -> None:
    found = verdict(failed(code=code, text=f"started\n{text}\n"))
    assert found.sentence.startswith(f"{sentence} where the program runs")
    assert (found.verdict_class, found.blame) == (VerdictClass.BEFORE_START, Blame.USER)
    assert found.confidence is Confidence.PROVEN
    assert found.evidence[0].shows.startswith("printed ")


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (1, OF_A_DICT),
        (1, "bash: line 1: pythn: command not found"),  # The script went on, and failed later.
        (0, ENVIRON),
        (3, MODULE),
        (1, MODULE + "\nTraceback (most recent call last):\n  File 'x'\nValueError: batch 12 is empty\n"),
        (1, "warning: No module named 'apex', going on without it\nsegment 3 is missing\n"),
        (2, "train.py: error: unrecognized arguments: --x"),
    ],
)
def test_another_failure_is_not_taken_for_a_missing_thing(code: int, text: str) -> None:
    assert RULE.judge(facts([failed(code=code, text=text)])) is None


def test_an_exception_that_was_recorded_is_enough() -> None:
    def missing(call: str) -> ProcessFacts:
        try:
            exec(call, {})
        except Exception as error:
            raised = describe_exception(error)
        return process(0, end=f"exception: {raised[0].title}", exception=raised)

    assert "the module flaxx is missing" in verdict(missing("import flaxx")).sentence
    assert "DATA_DIR_X is missing" in verdict(missing("import os; os.environ['DATA_DIR_X']")).sentence
    assert RULE.judge(facts([missing("{}['DATA_DIR_X']")])) is None


def test_equal_processes_are_one_cause() -> None:
    found = verdict(*(failed(index, text=MODULE) for index in range(4)))
    assert found.sentence.endswith("ModuleNotFoundError, on all 4 processes")
    assert len([each for each in found.evidence if each.shows.startswith("printed")]) == 1


def test_one_host_with_another_image_is_named() -> None:
    others = [process(index) for index in (0, 2, 3)]
    assert "on host-1" in verdict(others[0], failed(1, text=MODULE), *others[1:]).sentence


def test_it_replaces_more_general_rules() -> None:
    report = judge(facts([failed(index, text=MODULE) for index in range(2)]))
    assert report.headline.rule == "B6"
    assert [each.rule for each in report.shown] == ["B6"]


def test_a_program_that_made_steps_had_started() -> None:
    assert RULE.judge(facts([failed(text=MODULE, step=12)])) is None


def test_a_healthy_job_has_no_verdict() -> None:
    assert RULE.judge(facts([process(0, step=12), process(1, step=12)])) is None
    assert RULE.judge(facts()) is None


def test_without_its_last_lines_the_reason_is_not_guessed() -> None:
    found = RULE.judge(facts([failed(code=127)]))
    assert isinstance(found, NotChecked)
    assert "run --" in found.why


TEXTS = st.text(max_size=300) | st.sampled_from([ENVIRON, MODULE, OF_A_DICT, "a: b: No such file or directory"])


@given(st.lists(st.tuples(st.integers(0, 255), TEXTS, st.sampled_from(["out", "err"])), max_size=4))
def test_any_output_is_judged_without_an_error(ends: list[tuple[int, str, str]]) -> None:
    made: Facts = facts([failed(n, code=code, text=text, stream=stream) for n, (code, text, stream) in enumerate(ends)])
    found = RULE.judge(made)
    if isinstance(found, Verdict):
        assert found.sentence
        json.dumps(found.to_json())
