"""C9: a handler of SIGTERM that was installed after JAX's own disables JAX's save at a preemption."""

from __future__ import annotations

from typing import Final

from ml_diagnostics_common.story import Confidence

from ml_diagnostics_console._facts.facts import Facts, ProcessFacts, SigtermHandler
from ml_diagnostics_console._rules.asked import Saved, asked_of, is_graceful, saved_state
from ml_diagnostics_console._rules.leads import lead_of
from ml_diagnostics_console._rules.rule import Judgement, Rule
from ml_diagnostics_console._rules.wording import at, hosts_of, indices_of, named
from ml_diagnostics_console.verdict import Blame, NextCommand, NotChecked, Part, Verdict, VerdictClass

__all__ = ["RULE"]

_NEEDS: Final = "the handlers of SIGTERM are not recorded: use `with diagnose(...)`"
_LINES: Final = "signal.signal(signal.SIGTERM, handler)\njax.distributed.initialize()"


def _judge(facts: Facts) -> Judgement:
    """Return the verdict on a handler that replaced JAX's."""
    asked = [process for process in facts.processes if asked_of(process) is not None]
    lead = lead_of(facts)
    if not asked or (lead is not None and is_graceful(facts, lead)):
        return None
    known = [process for process in asked if process.sigterm_handlers or "sigterm_handler" in process.end_fields]
    if not known:
        return NotChecked("C9", _NEEDS)
    replaced = [(process, handler) for process in known if (handler := _replacement(process)) is not None]
    if not replaced:
        return None
    process, handler = replaced[0]
    saved, _ = saved_state(facts, process)
    if saved is Saved.YES:
        return None
    processes = [process for process, _ in replaced]
    name = f" ({handler.function})" if handler.function else ""
    when = at(None, handler.time_ns)
    consequence = "so JAX did not learn of the request to stop, and saved nothing"
    if saved is Saved.UNKNOWN:
        consequence = "so JAX did not learn of the request to stop; it is not recorded if the program saved by itself"
    first = next((each for each in process.sigterm_handlers if each.handler == "c"), handler)
    return Verdict(
        rule="C9",
        verdict_class=VerdictClass.CRASH,
        sentence=f"host{'s' if len(processes) > 1 else ''} {named(processes)} installed a handler of SIGTERM{name} "
        f"{when} after jax.distributed.initialize, {consequence}",
        blame=Blame.USER,
        confidence=Confidence.PROVEN if saved is Saved.NO else Confidence.LIKELY,
        part=Part.CONTRIBUTING,
        hosts=hosts_of(processes),
        process_indices=indices_of(processes),
        step=process.step,
        since_ns=handler.time_ns,
        evidence=(handler.ref, first.ref) if first is not handler else (handler.ref,),
        next=(NextCommand(_LINES, "install the handler before: JAX then calls none, and saves"),),
    )


def _replacement(process: ProcessFacts) -> SigtermHandler | None:
    """Return the handler in Python that replaced one in C; None if there is none, or C has the last one again."""
    by_c = False
    found: SigtermHandler | None = None
    for handler in process.sigterm_handlers:
        if handler.handler == "c":
            by_c, found = True, None
        elif handler.handler == "python" and by_c:
            found = handler
    return found


RULE = Rule(
    id="C9",
    title="a handler of SIGTERM disables JAX's own save at a preemption",
    needs=("the handlers of SIGTERM in their order: `with diagnose(...)`", "SIGTERM: as for C4"),
    judge=_judge,
    example="host host-1 installed a handler of SIGTERM (on_term) at 15:40:00 UTC after jax.distributed.initialize, so "
    "JAX did not learn of the request to stop, and saved nothing",
)
