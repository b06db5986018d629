"""The results that this project promises, measured beside the public packages of the same names.

    python -m benchmarks [TABLE ...] [--quick]

One file for each table; each measurement runs in a process of its own, ours in this environment and the reference
in one of its own. Machines are noisy, so what counts are ratios within one run.
"""
