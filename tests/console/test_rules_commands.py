"""Commands to copy: a name with any character is one word of the shell."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ml_diagnostics_common.entry import EntryContext, LogEntry
from ml_diagnostics_console import _rules
from ml_diagnostics_console._facts.curves import Curves
from ml_diagnostics_console._facts.facts import Facts, HangVerdict, MainStack, ProcessFacts
from ml_diagnostics_console._rules import all_rules
from ml_diagnostics_console._rules.crashes import command, logs_around
from ml_diagnostics_console._rules.stuck_texts import shell, stacks_command
from ml_diagnostics_console._rules.wording import command_line
from ml_diagnostics_console.verdict import Verdict

from .made_facts import after, facts, process, ref

_NAMES = st.text(min_size=1, max_size=12) | st.sampled_from(
    ["a b", "$(reboot)", "x;y", "it's", "`id`", "-n", 'a"b', "*"]
)
_OF_JOBS = ("mldiagnostics", "tpu-stacks", "goodput")
_METRICS: tuple[tuple[str, dict[str, Any], float], ...] = (
    ("tpu_ici_link_health", {"links": ["a"]}, 10.0),
    ("tpu_throttle_score", {"accelerator_labels": ["c"]}, 5.0),
    ("gpu_xid_errors", {"accelerator_labels": ["g"], "codes": [[79]]}, 1.0),
    ("container_memory_utilization", {}, 99.0),
    ("loss", {"not_finite": True}, float("nan")),
)


def _metrics(host: str) -> Curves:
    curves = Curves()
    context = EntryContext("ml_diagnostics_metric", "", {}, {"host": host, "pid": "4000"}, writer="w-1-0")
    for name, beside, value in _METRICS:
        for number in range(8):
            payload = {"values": [value], "unit": "1", "hostname": host, **beside}
            curves.add(name, LogEntry(after(10 * number), 100_000_000_000 + number, payload, context))
    for number in range(4):
        other = EntryContext(
            "ml_diagnostics_metric", "", {}, {"host": f"h{number}", "pid": "1"}, writer=f"w{number}-1-0"
        )
        for each, latency in ((other, 9_000.0), (context, 41_000.0)):
            payload = {"values": [latency], "unit": "1"}
            curves.add("tpu_buffer_transfer_latency", LogEntry(after(number), 100_000_000_000 + number, payload, each))
    return curves


def _jobs(name: str, host: str) -> Iterator[Facts]:
    """Yield a job that is slow, one that is stuck with several pictures, and one that failed."""
    known: dict[str, Any] = {"metrics": _metrics(host)}
    pair = [process(0, host=host, step=30), process(1, step=30)]
    hang = HangVerdict(after(95), "step", 30, 40.0, 30.0, "", ref("hang", seconds=95))
    stacks = tuple(
        MainStack(after(100), (f"{at} (/job/train.py:8)",), 30, "sync", 0.0, "snapshot", ref("s")) for at in "ab"
    )
    waits = [replace(each, hangs=(hang,), stacks=stacks[:1], last_event_ns=after(100)) for each in pair]
    apart = [replace(each, stacks=(stack,)) for each, stack in zip(waits, stacks, strict=True)]
    silent = [*waits[1:], replace(waits[0], stacks=(), hangs=(), last_event_ns=after(20))]
    differ = [replace(each, software={"jax_version": str(number)}) for number, each in enumerate(pair)]
    failed = [process(0, host=host, step=30, end="exception: ValueError: x", ended=70), pair[1]]
    twice: list[ProcessFacts] = [replace(pair[0], pid=1), replace(pair[1], index=0)]
    for processes in (pair, waits, apart, silent, differ, failed, twice):
        yield replace(facts(processes, **known), name=name, display_name=name)


@settings(max_examples=40, suppress_health_check=list(HealthCheck))
@given(name=_NAMES, host=_NAMES)
def test_a_command_of_any_rule_holds_each_name_as_one_word(name: str, host: str) -> None:
    seen = set()
    for known in _jobs(name, host):
        verdicts = [found for rule in all_rules() if isinstance(found := rule.judge(known), Verdict)]
        for verdict in verdicts:
            for each in verdict.next:
                if each.command.startswith(_OF_JOBS) and "simulate" not in each.command:
                    words = shlex.split(each.command)
                    assert name in words, (verdict.rule, each.command)
                    seen.add(verdict.rule)
                    if words[1:3] == ["ssh", name]:
                        assert words[3] in (host, "host-1"), (verdict.rule, each.command)
    assert seen >= {"H1", "H2", "H4", "L5", "C1", "N1"}, seen


@given(name=_NAMES, host=_NAMES)
def test_shared_commands_hold_each_name_as_one_word(name: str, host: str) -> None:
    one = process(0, host=host, step=4)
    known = replace(facts([one]), name=name, display_name=name)
    assert shlex.split(shell(known, one, "env", "").command) == ["mldiagnostics", "ssh", name, host, "--", "env"]
    assert name in shlex.split(stacks_command(known, [one], is_over=True).command)
    assert shlex.split(command(known, "mldiagnostics show RUN", "").command) == ["mldiagnostics", "show", name]
    assert shlex.split(logs_around(known, one).command)[2:5] == [name, "--host", host]
    assert shlex.split(command_line("x", name, host)) == ["x", name, host]


def test_no_rule_writes_a_name_into_a_command_without_quotes() -> None:
    written = re.compile(r'f"(?:mldiagnostics|tpu-stacks|goodput|kubectl|gcloud|docker) [^"]*\{([a-z][\w.\[\]]+)\}')
    # Numbers, constants and texts that are quoted before.
    known = {"options", "first.attempt.number", "processes[0].pid", "metric", "host", "folder", "pod_name", "around"}
    for path in Path(_rules.__file__).parent.glob("*.py"):
        for found in written.finditer(path.read_text(encoding="utf-8")):
            assert found[1] in known, (path.name, found[0])
