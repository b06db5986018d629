"""The figures that this project promises, measured beside the public packages of the same names.

    python -m benchmarks [FIGURE ...] [--quick]

A file a figure; each measurement runs in a process of its own, ours in this environment and the reference in one that
is made for it. Machines are noisy, so what counts are ratios within one run.
"""
