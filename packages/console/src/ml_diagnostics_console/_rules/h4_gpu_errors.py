"""H4: a GPU has reported errors of its hardware."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from ml_diagnostics_console._facts.curves import Curve
from ml_diagnostics_console._facts.facts import Facts
from ml_diagnostics_console._rules.attempt_metrics import metrics_of
from ml_diagnostics_console._rules.devices import began_before_failure, class_of
from ml_diagnostics_console._rules.rule import Judgement, Rule, Threshold
from ml_diagnostics_console._rules.wording import clock, command_line
from ml_diagnostics_console.verdict import Blame, Confidence, NextCommand, NotChecked, Part, Verdict, VerdictClass

__all__ = ["RULE"]

_XID: Final = "gpu_xid_errors"
_ECC: Final = "gpu_ecc_uncorrected_errors"
_ROWS: Final = "gpu_remapped_rows"
_OF_HARDWARE: Final = {
    48: "an uncorrectable memory error",
    62: "a halted microcontroller",
    63: "a memory row to be remapped",
    64: "a memory row that could not be remapped",
    74: "an NVLink error",
    79: "it has fallen off the bus",
    92: "many correctable memory errors",
    94: "a contained memory error",
    95: "an uncontained memory error",
    119: "its system processor does not answer",
    120: "its system processor failed",
}
"""Xid codes of hardware and firmware (https://docs.nvidia.com/deploy/xid-errors); others are mostly of the program."""


class _Error(NamedTuple):
    """An error of a GPU."""

    curve: Curve
    text: str


def _judge(facts: Facts) -> Judgement:
    if facts.attempt is None:
        return None
    if not metrics_of(facts).names() & {_XID, _ECC, _ROWS}:
        return NotChecked("H4", "errors of GPUs are not recorded: a run records them on hosts with GPUs and pynvml")
    errors = [*_xids(facts), *_memory(facts)]
    if not errors:
        return None
    first = errors[0]
    kind = class_of(facts)
    hosts = tuple(dict.fromkeys(error.curve.key.host for error in errors))
    is_first = began_before_failure(facts, first.curve.key.host, _since_ns(first.curve))
    chip = first.curve.labels.get("chip") or f"a GPU of {first.curve.key.host}"
    more = "" if len(errors) == 1 else f" (and {len(errors) - 1} more)"
    return Verdict(
        rule="H4",
        verdict_class=kind,
        sentence=f"{chip} has reported {first.text}, by {clock(first.curve.last_ns)}{more}",
        blame=Blame.SYSTEM,
        confidence=Confidence.PROVEN,
        part=Part.INITIATING if kind is not VerdictClass.SLOW and is_first else Part.CONTRIBUTING,
        hosts=hosts,
        process_indices=tuple(
            process.index for process in facts.processes if process.host in hosts and process.index is not None
        ),
        evidence=tuple(error.curve.ref("last", f"{error.curve.key.host}: {error.text}") for error in errors[:3]),
        next=(
            NextCommand(
                command_line("mldiagnostics", "ssh", facts.name, first.curve.key.host, "--", "nvidia-smi", "-q"),
                "the state of its GPUs",
            ),
            NextCommand("", f"replace {first.curve.key.host}, or reset the GPU, before the next attempt"),
        ),
    )


def _since_ns(curve: Curve) -> int:
    """Return the time of the first error that the job has met: of the first value above the lowest, or of the first."""
    return next((time_ns for time_ns, value in curve.points() if value > curve.lowest), curve.first_ns)


def _xids(facts: Facts) -> Iterable[_Error]:
    for curve in metrics_of(facts).of(_XID):
        codes = curve.detail("codes")
        for code in codes if isinstance(codes, list) else ():
            if isinstance(code, (int, float)) and int(code) in _OF_HARDWARE:
                yield _Error(curve, f"Xid {int(code)}: {_OF_HARDWARE[int(code)]}")


def _memory(facts: Facts) -> Iterable[_Error]:
    for curve in metrics_of(facts).of(_ECC):
        if curve.last > curve.lowest:
            yield _Error(curve, f"{curve.last - curve.lowest:.0f} uncorrectable memory errors during the job")
    for curve in metrics_of(facts).of(_ROWS):
        if curve.detail("failed") is True:
            yield _Error(curve, "a memory row that could not be remapped")


RULE = Rule(
    id="H4",
    title="a GPU has reported errors of its hardware",
    needs=(f"the metrics {_XID}, {_ECC} and {_ROWS}",),
    judge=_judge,
    thresholds=(
        Threshold("Xid codes", ", ".join(map(str, _OF_HARDWARE)), "NVIDIA's list of Xid errors: hardware and firmware"),
        Threshold("uncorrectable errors", 1, "each is a wrong bit that the job may have used"),
    ),
    example="host-3-gpu1 has reported Xid 79: it has fallen off the bus, by 16:02:11 UTC",
)
