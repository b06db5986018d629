"""faultbench: jobs of real JAX processes with injected faults, and the score of what diagnoses them.

    python -m ml_diagnostics_console.faultbench --only sigkill --seeds 0

See docs/explanation/faultbench.md.
"""
