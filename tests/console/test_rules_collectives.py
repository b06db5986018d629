"""C10 tells which host ran another collective than the others, where native code ended the one that received it."""

from __future__ import annotations

from typing import Any

from ml_diagnostics_common.story import Confidence
from ml_diagnostics_console._facts.facts import CompileBatch, ConsoleText, ProcessFacts
from ml_diagnostics_console._rules.c10_collectives_differ import RULE
from ml_diagnostics_console.doctor import judge
from ml_diagnostics_console.verdict import Blame, Verdict, VerdictClass

from tests.console.made_facts import after, facts, process, ref

MISMATCH = (
    "terminate called after throwing an instance of 'gloo::EnforceNotMet'\n"
    "  what():  [enforce fail at external/gloo/gloo/transport/tcp/pair.cc:459] op.preamble.length <= op.nbytes. "
    "2048 vs 512. Received data size doesn't match expected size. Is there a distributed collective mismatch in your "
    "code?\n"
)
"""The text of a real run: jaxlib 0.10 on CPUs."""


def trainer(index: int, *, compiled: tuple[str, ...] = ("train_step",), **fields: Any) -> ProcessFacts:
    shown = ref("JAX compiled", seconds=50.0)
    batch = CompileBatch(after(50.0), len(compiled), 0.1, dict.fromkeys(compiled, 1), shown)
    known = {"step": 76, "end": "signal: SIGABRT", "ended": 60.0 + index / 100, "compiles": (batch,), **fields}
    return process(index, **known)


def console(text: str = MISMATCH) -> tuple[ConsoleText, ...]:
    return (ConsoleText(after(60.0), "err", "end", text, ref("console")),)


def verdict(*processes: ProcessFacts) -> Verdict:
    found = RULE.judge(facts(processes))
    assert isinstance(found, Verdict)
    return found


def test_the_host_that_compiled_another_program_is_named_and_not_the_one_that_crashed() -> None:
    odd = trainer(1, compiled=("train_step", "evaluate"))
    found = verdict(trainer(0, console=console()), odd, trainer(2), trainer(3))
    assert (found.hosts, found.verdict_class, found.blame) == (("host-1",), VerdictClass.CRASH, Blame.USER)
    assert found.confidence is Confidence.LIKELY
    assert found.sentence.startswith(
        "host host-1 ran another collective than the other 3 processes at step 76 (04:41:00 UTC): it compiled evaluate "
        "1 times, the others 0; host-0 received 2,048 bytes where its own collective has 512"
    )


def test_the_host_that_was_in_another_phase_is_named() -> None:
    processes = [trainer(index, last_phase="step" if index == 2 else "sync") for index in range(3)]
    found = verdict(trainer(0, last_phase="sync", console=console()), *processes[1:])
    assert found.hosts == ("host-2",)
    assert "it was in phase step, the others were not" in found.sentence


def test_no_host_is_named_where_nothing_shows_which_differs() -> None:
    found = verdict(trainer(0, last_phase="sync", console=console()), trainer(1), trainer(2, last_phase="sync"))
    assert found.sentence.startswith("all 3 processes ran different collectives at step 76")
    assert "because of it" not in found.sentence
    assert len(found.hosts) == 3


def test_a_crash_of_another_library_is_none_of_its_own() -> None:
    text = "terminate called after throwing an instance of 'std::bad_alloc'\n"
    assert RULE.judge(facts([trainer(0, console=console(text)), trainer(1), trainer(2)])) is None


def test_it_is_the_headline_instead_of_the_crash() -> None:
    odd = trainer(1, compiled=("train_step", "evaluate"))
    report = judge(facts([trainer(0, console=console()), odd, trainer(2)]))
    assert [found.rule for found in report.shown][:1] == ["C10"]
    assert "C5" not in [found.rule for found in report.shown]
