"""L6: the job computes on the CPU of a host that has accelerators, or does not use them."""

from __future__ import annotations

from typing import Final

from ml_diagnostics_console._facts.facts import Facts, ProcessFacts
from ml_diagnostics_console._rules.attempt_metrics import metrics_of
from ml_diagnostics_console._rules.rule import Judgement, Rule, Threshold
from ml_diagnostics_console._rules.step_times import part_of
from ml_diagnostics_console._rules.wording import hosts_of, indices_of, named
from ml_diagnostics_console.verdict import (
    Blame,
    Confidence,
    NextCommand,
    NotChecked,
    Ref,
    Verdict,
    VerdictClass,
)

__all__ = ["RULE"]

_TPU, _GPU = "tpu", "gpu"
_OF_ACCELERATORS: Final = {_TPU: ("tpu_duty_cycle", "hbm_utilization"), _GPU: ("gpu_duty_cycle", "vram_utilization")}
_DUTY: Final = {_TPU: "tpu_duty_cycle", _GPU: "gpu_duty_cycle"}
_LEAST_SAMPLES: Final = 6
_INSTALL: Final = {_TPU: 'pip install "jax[tpu]"', _GPU: 'pip install "jax[cuda12]"'}


def _judge(facts: Facts) -> Judgement:
    if facts.attempt is None:
        return None
    kinds = {process.hardware.get("accelerator_type", "") for process in facts.processes}
    if kinds <= {""} and not any(metrics_of(facts).of(name) for name in _DUTY.values()):
        return NotChecked("L6", "the devices of the job are not known: it has not initialised them within a run")
    on_cpu = [
        (process, kind, ref)
        for process in facts.processes
        if process.hardware.get("accelerator_type") == "cpu" and (found := _accelerator(facts, process)) is not None
        for kind, ref in (found,)
    ]
    if on_cpu:
        processes = [process for process, _, _ in on_cpu]
        kind = on_cpu[0][1]
        verb = "computes" if len(processes) == 1 else "compute"
        why = f"though the host has {kind.upper()}s: JAX's devices are of the kind cpu"
        sentence = f"{named(processes)} {verb} on the CPU, {why}"
        return _verdict(facts, processes, kind, sentence, tuple(ref for _, _, ref in on_cpu[:3]), Confidence.LIKELY)
    return _idle(facts)


def _accelerator(facts: Facts, process: ProcessFacts) -> tuple[str, Ref] | None:
    """Return the kind of accelerators that the host of a process has, and what shows it."""
    for kind, names in _OF_ACCELERATORS.items():
        for name in names:
            for curve in metrics_of(facts).of(name, host=process.host):
                return kind, curve.ref("last", f"{process.host} reports {name} of its {kind.upper()}s")
    accelerator = process.hardware.get("tpu_accelerator_type")
    if accelerator:
        shows = f"{process.host}: TPU_ACCELERATOR_TYPE is {accelerator}, and the devices of the job are cpu"
        refs = process.config_refs
        return _TPU, (refs[0] if refs else Ref(facts.name, "run", process.started_ns, process.host))._replace(
            shows=shows
        )
    return None


def _idle(facts: Facts) -> Verdict | None:
    """Return that the accelerators were never used though steps were made; None if they were, or if it is not known."""
    has_steps = any(process.step for process in facts.processes)
    for kind, name in _DUTY.items():
        curves = metrics_of(facts).of(name)
        if not curves or not has_steps or any(curve.highest > 0 or len(curve) < _LEAST_SAMPLES for curve in curves):
            continue
        hosts = {curve.key.host for curve in curves}
        processes = [process for process in facts.processes if process.host in hosts]
        if processes:
            why = f"the {kind.upper()}s of the host did nothing in all steps"
            verb = "computes" if len(processes) == 1 else "compute"
            sentence = f"possibly {named(processes)} {verb} on the CPU: {why}"
            return _verdict(facts, processes, kind, sentence, (curves[0].ref("last"),), Confidence.POSSIBLE)
    return None


def _verdict(
    facts: Facts,
    processes: list[ProcessFacts],
    kind: str,
    sentence: str,
    refs: tuple[Ref, ...],
    confidence: Confidence,
) -> Verdict:
    return Verdict(
        rule="L6",
        verdict_class=VerdictClass.SLOW,
        sentence=sentence,
        blame=Blame.USER,
        confidence=confidence,
        part=part_of(facts),
        hosts=hosts_of(processes),
        process_indices=indices_of(processes),
        evidence=refs,
        next=(
            NextCommand(
                _INSTALL[kind], f"installs JAX for this accelerator; JAX_PLATFORMS={kind} then fails if it is missing"
            ),
        ),
    )


RULE = Rule(
    id="L6",
    title="no accelerator is used",
    needs=("the hardware of each host, which a run records; the duty cycle of its accelerators",),
    judge=_judge,
    thresholds=(Threshold("samples of a duty cycle of 0", _LEAST_SAMPLES, "a minute, at one each 10 s"),),
    example="host-3 computes on the CPU, though the host has TPUs: JAX's devices are of the kind cpu",
)
