"""B6: the program cannot start: its command, a file, a module or a variable is missing where it runs."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from ml_diagnostics_common.raised_exception import RaisedException
from ml_diagnostics_common.story import Confidence, Role

from ml_diagnostics_console._facts.facts import AttemptFacts, ConsoleText, Facts, ProcessFacts
from ml_diagnostics_console._rules.costs import cost_of_failure
from ml_diagnostics_console._rules.crashes import logs_around
from ml_diagnostics_console._rules.rule import Judgement, Rule
from ml_diagnostics_console._rules.wording import consequences, hosts_of, indices_of, named, quoted
from ml_diagnostics_console.verdict import Blame, NextCommand, NotChecked, Ref, Verdict, VerdictClass

__all__ = ["RULE"]

_ID: Final = "B6"
_NOT_EXECUTABLE: Final = 126
_NOT_FOUND: Final = 127
_MOST_TEXT: Final = 8_192
_MOST_PROOFS: Final = 3
_NO_FILE: Final = 2
"""The exit code of Python for a script that it cannot open."""
_NAME: Final = r"[\w.+@/~:-]{1,200}"
_COMMANDS: Final = (
    re.compile(rf'exec: "(?P<name>{_NAME})": (?P<why>executable file not found in \$PATH|no such file or directory)'),
    re.compile(rf"(?:^|: )(?P<name>{_NAME}): (?P<why>command not found|not found)\s*$", re.MULTILINE),
    re.compile(rf"env: [\u2018'\"]?(?P<name>{_NAME})[\u2019'\"]?: (?P<why>No such file or directory)"),
    re.compile(rf"(?:^|: )(?P<name>{_NAME}): (?P<why>No such file or directory)\s*$", re.MULTILINE),
    re.compile(rf"cannot run '(?P<name>{_NAME})': (?P<why>No such file or directory)"),
)
"""Texts of container runtimes, of shells, of env, and of `python -m cloud_tpu_diagnostics run`."""
_DENIED: Final = re.compile(rf'(?:exec: ")?(?P<name>{_NAME})"?: (?P<why>[Pp]ermission denied|[Ee]xec format error)')
_SCRIPT: Final = re.compile(r"can't open file '(?P<name>[^'\n]{1,300})': \[Errno \d+\] (?P<why>[^\n]{1,80})")
_MODULE: Final = re.compile(r"(?:ModuleNotFoundError: )?No module named '?(?P<name>[\w.]{1,200})'?")
_IMPORTED: Final = re.compile(r"ImportError: (?P<name>cannot import name [^\n]{1,200})")
_UNSET: Final = re.compile(r"KeyError: '(?P<name>[A-Za-z_][A-Za-z0-9_]{0,200})'")
_UNBOUND: Final = re.compile(r"(?:^|: )(?P<name>[A-Za-z_][A-Za-z0-9_]{0,200}): unbound variable\s*$", re.MULTILINE)
_OF_ENVIRON: Final = re.compile(
    r"(?:<frozen os>|[/\\]os\.py)\"?[^\n]*\b__getitem__|__getitem__ \((?:<frozen os>|\S*os\.py):"
)
"""The frame of `os.environ[...]`: the same KeyError of another mapping is not about a variable."""


class _Missing(NamedTuple):
    """A missing thing.

    Attributes:
        what: Its kind: command, file, module or variable.
        name: Its name.
        why: The end of the sentence.
        advice: The remedy.
    """

    what: str
    name: str
    why: str
    advice: str


def judge(facts: Facts) -> Judgement:
    """Return the verdict on a program that could not start."""
    attempt = facts.attempt
    if attempt is None or (attempt.best_step or 0) > 0:
        return None
    own = [process for process in attempt.processes if process.role is Role.OWN and not process.step]
    found = [(process, missing) for process in own if (missing := _missing(process)) is not None]
    if not found:
        return _not_checked(own)
    missing = found[0][1]
    processes = tuple(process for process, each in found if (each.what, each.name) == (missing.what, missing.name))
    return _verdict(facts, attempt, processes, missing)


def _verdict(facts: Facts, attempt: AttemptFacts, processes: tuple[ProcessFacts, ...], missing: _Missing) -> Verdict:
    first = processes[0]
    count = len(attempt.processes)
    all_of_them = "its only process" if count == 1 else f"all {count} processes"
    subject = all_of_them if len(processes) == count else named(processes)
    loss = cost_of_failure(facts, first.end.ended_ns)
    return Verdict(
        rule=_ID,
        verdict_class=VerdictClass.BEFORE_START,
        sentence=f"the {missing.what} {missing.name} is missing where the program runs: {missing.why}, on {subject}"
        f"{consequences(attempt)}",
        blame=Blame.USER,
        # The interpreter, the shell or the container's runtime reports it, and the process ended by it.
        confidence=Confidence.PROVEN,
        hosts=hosts_of(processes),
        process_indices=indices_of(processes),
        since_ns=first.end.ended_ns,
        ended_ns=attempt.ended_ns,
        cost=loss.cost,
        evidence=(*_evidence(processes, missing), *first.end_refs[:1], *loss.refs),
        next=(NextCommand("", missing.advice), logs_around(facts, first, "read what it printed")),
    )


def _evidence(processes: tuple[ProcessFacts, ...], missing: _Missing) -> Iterator[Ref]:
    """Yield the console texts that name it, equal lines once; an exception is in the entry on the end."""
    seen = set[str]()
    for process in processes:
        lines = (
            (text, line.strip())
            for text in process.console
            for line in text.text[-_MOST_TEXT:].splitlines()[::-1]
            if missing.name in line
        )
        text, line = next(lines, (None, ""))
        if text is not None and line not in seen and len(seen) < _MOST_PROOFS:
            seen.add(line)
            yield text.ref._replace(shows=f"printed {quoted(line)!r}")


def _not_checked(own: list[ProcessFacts]) -> NotChecked | None:
    """Report a process of which only the exit code is known, if that code is one of a failed start."""
    codes = (1, _NO_FILE, _NOT_EXECUTABLE, _NOT_FOUND)
    silent = [each for each in own if not each.console and not each.exception and not each.end.exception]
    if not any(each.end.exit_code in codes for each in silent):
        return None
    return NotChecked(
        _ID, "the last lines of the program are not recorded: start it by `python -m cloud_tpu_diagnostics run --`"
    )


# --- Signs --------------------------------------------------------------------------------------------


def _missing(process: ProcessFacts) -> _Missing | None:
    """Return what a process missed, by its exception or by the last lines that it printed."""
    if process.exception or process.end.exception:
        return _of_exception(process)
    code = process.end.exit_code
    if process.end.how not in ("exit", "exception") or not code:
        return None
    for text in _last_texts(process):
        for sign in _SIGNS:
            found = sign(text, code)
            if found is not None:
                return found
    return None


def _of_exception(process: ProcessFacts) -> _Missing | None:
    raised: RaisedException | None = process.exception[0] if process.exception else None
    title = raised.title if raised is not None else process.end.exception
    frames = "\n".join(str(frame) for frame in raised.frames) if raised is not None else ""
    return _of_traceback(title, frames)


def _of_traceback(title: str, frames: str) -> _Missing | None:
    if (found := _MODULE.search(title)) is not None:
        return _module(found["name"])
    if (found := _IMPORTED.search(title)) is not None:
        advice = "install the version of the package that the program was written for"
        return _Missing("import", quoted(found["name"]), "ImportError", advice)
    if (found := _UNSET.match(title)) is not None and _OF_ENVIRON.search(frames):
        return _variable(found["name"], "the program reads it by os.environ")
    return None


def _command_sign(text: str, code: int) -> _Missing | None:
    if code != _NOT_FOUND:
        return None
    for pattern in _COMMANDS:
        if (found := _last(pattern, text)) is not None:
            advice = f"correct the command, or add {found['name']} to the image; PATH of the container counts"
            return _Missing("command", found["name"], f"{found['why']} (exit code {code})", advice)
    return None


def _denied_sign(text: str, code: int) -> _Missing | None:
    if code != _NOT_EXECUTABLE or (found := _last(_DENIED, text)) is None:
        return None
    advice = f"make {found['name']} executable in the image (chmod +x), and for the machine's architecture"
    return _Missing("executable", found["name"], f"{found['why'].lower()} (exit code {code})", advice)


def _script_sign(text: str, code: int) -> _Missing | None:
    if code != _NO_FILE or (found := _last(_SCRIPT, text)) is None:
        return None
    advice = "correct its path in the command, or workingDir; or add the file to the image"
    return _Missing("file", quoted(found["name"]), f"{found['why'].lower()} (exit code {code})", advice)


def _python_sign(text: str, code: int) -> _Missing | None:
    """Return what the last traceback of Python shows; `python -m` prints one line without a traceback."""
    if code != 1:
        return None
    before, found, traceback = text.rpartition("Traceback (most recent call last):")
    if not found:
        last = next((line for line in before.splitlines()[::-1] or text.splitlines()[::-1] if line.strip()), "")
        return _module(match["name"]) if (match := re.search(rf": {_MODULE.pattern}$", last)) else None
    titles = [line for line in traceback.splitlines() if line and not line[0].isspace()]
    return _of_traceback(titles[0], traceback) if titles else None


def _unbound_sign(text: str, code: int) -> _Missing | None:
    found = _last(_UNBOUND, text)
    return None if found is None else _variable(found["name"], f"unbound variable (exit code {code})")


_SIGNS: Final[tuple[Callable[[str, int], _Missing | None], ...]] = (
    _command_sign,
    _denied_sign,
    _script_sign,
    _unbound_sign,
    _python_sign,
)


def _module(name: str) -> _Missing:
    return _Missing(
        "module",
        name,
        "ModuleNotFoundError",
        f"install the package with {name.partition('.')[0]} in the image, or correct PYTHONPATH",
    )


def _variable(name: str, why: str) -> _Missing:
    return _Missing("environment variable", name, why, f"set {name} under `env` of the container, or give it a default")


def _last(pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
    found = None
    for match in pattern.finditer(text):
        found = match
    return found


def _last_texts(process: ProcessFacts) -> Iterator[str]:
    """Yield the ends of what it printed, standard error first."""
    texts: list[ConsoleText] = sorted(process.console, key=lambda text: (text.stream == "out", -text.time_ns))
    for text in texts:
        if text.occasion == "end":
            yield text.text[-_MOST_TEXT:]


RULE = Rule(
    id=_ID,
    title="the program cannot start: a command, file, module or variable is missing",
    needs=(
        "the end of each process, and its last lines: `python -m cloud_tpu_diagnostics run -- CMD`",
        "or its exception: `with diagnose(...)` or machinelearning_run",
    ),
    judge=judge,
    example="the module flax is missing where the program runs: ModuleNotFoundError, on all 4 processes.",
    replaces=("B2", "C1", "C6", "U0"),
)
