"""faultbench: jobs of real JAX processes with injected faults, and the score of whatever diagnoses them.

    python -m ml_diagnostics_console.faultbench --only sigkill --seeds 0 --store histories
    python -m ml_diagnostics_console.faultbench --score histories --tool 'my-doctor --json'

A tool of your own is a command, or a function from a `History` to an `Answer` for `score_all`. See
docs/explanation/faultbench.md.
"""

from ml_diagnostics_console.faultbench._asking import Answer, Tool, answer_of, command_tool, doctor
from ml_diagnostics_console.faultbench._baselines import BASELINES
from ml_diagnostics_console.faultbench._bench import first_cause_under_offsets, run_all, score_all
from ml_diagnostics_console.faultbench._evidence import Evidence, ProcessEvidence, Sample
from ml_diagnostics_console.faultbench._histories import History, histories_in, hosts_of, read, shift_clocks
from ml_diagnostics_console.faultbench._kinds import At, Culprit, Expected, Kind
from ml_diagnostics_console.faultbench._labels import Label, label_of
from ml_diagnostics_console.faultbench._plans import KINDS, Plan, plan_of, plans_of, seeds_of
from ml_diagnostics_console.faultbench._running import RunResult, run
from ml_diagnostics_console.faultbench._scoring import Case, Rate, Score, is_right_class, is_right_culprit, score

__all__ = [
    "BASELINES",
    "KINDS",
    "Answer",
    "At",
    "Case",
    "Culprit",
    "Evidence",
    "Expected",
    "History",
    "Kind",
    "Label",
    "Plan",
    "ProcessEvidence",
    "Rate",
    "RunResult",
    "Sample",
    "Score",
    "Tool",
    "answer_of",
    "command_tool",
    "doctor",
    "first_cause_under_offsets",
    "histories_in",
    "hosts_of",
    "is_right_class",
    "is_right_culprit",
    "label_of",
    "plan_of",
    "plans_of",
    "read",
    "run",
    "run_all",
    "score",
    "score_all",
    "seeds_of",
    "shift_clocks",
]
