"""Exact output of `xprofiler summary`, at 80 and at 200 columns; names from a profile cannot control the terminal."""

from __future__ import annotations

import io
import sys
import textwrap
from pathlib import Path

import pytest
from ml_diagnostics_common.command.console import Console
from xprofiler.summary.summary import Host, Operation, Step, Summary
from xprofiler.summary.text import format_summary

from ..terminals import run_in_terminal
from .made_profiles import tpu_session
from .typed_commands import typed

_AT_80 = """\
compute-bound: Device compute takes 69.4 % of the step

tensorboard/session_2026_11_21_10_00_00: 2 hosts, 8 cores of TPU v5p, 12 steps

Step time  1.22 ms mean, 1.20 ms median, 1.20 ms to 1.50 ms, deviation 82.9 us
Busy       85.2 % busy, 14.8 % idle: devices
           duty cycle: 80.2 %
Input      6.6 % of a step waits for input
           Your program is MODERATELY input-bound because 7.0% of the total step
           time sampled is waiting for input. Therefore, you would need to
           reduce both the input time and other time.

The mean step's time               Spent   Share
-------------------------------  -------  ------  -------------------
Device compute                    850 us  69.4 %  ###################
Device collective communication   110 us   9.0 %  ###
Input                            85.0 us   6.9 %  ##
All others                        180 us  14.7 %  ####

Operation      Category            Bound by  Runs  Self time   Share
-------------  ------------------  --------  ----  ---------  ------
convolution.7  convolution         Compute     96    40.3 ms  40.7 %
fusion.21      convolution fusion  Compute     96    25.0 ms  25.2 %
fusion.4       loop fusion         HBM         96    13.4 ms  13.6 %
all-reduce.3   all-reduce          HBM         96    10.6 ms  10.7 %
infeed.1       infeed                          96    6.96 ms   7.0 %
copy.2         data formatting     HBM         96    2.88 ms   2.9 %

Host       Size  Mean step  All others  Slowest in
------  -------  ---------  ----------  ----------
host-a  17.9 kB    1.20 ms      15.0 %
host-b  17.9 kB    1.22 ms      14.7 %      1 step
"""
_AT_200 = """\
compute-bound: Device compute takes 69.4 % of the step

tensorboard/session_2026_11_21_10_00_00: 2 hosts, 8 cores of TPU v5p, 12 steps

Step time  1.22 ms mean, 1.20 ms median, 1.20 ms to 1.50 ms, deviation 82.9 us
Busy       85.2 % busy, 14.8 % idle: devices
           duty cycle: 80.2 %
Input      6.6 % of a step waits for input
           Your program is MODERATELY input-bound because 7.0% of the total step time sampled is waiting for input. Therefore, you would need to reduce both the input time and other time.

The mean step's time               Spent   Share
-------------------------------  -------  ------  ----------------------------
Device compute                    850 us  69.4 %  ############################
Device collective communication   110 us   9.0 %  ####
Input                            85.0 us   6.9 %  ###
All others                        180 us  14.7 %  ######

Operation      Category            Called by                      Bound by  Runs  Self time   Share
-------------  ------------------  -----------------------------  --------  ----  ---------  ------
convolution.7  convolution         jit(train)/convolution         Compute     96    40.3 ms  40.7 %
fusion.21      convolution fusion  jit(train)/convolution_fusion  Compute     96    25.0 ms  25.2 %
fusion.4       loop fusion         jit(train)/loop_fusion         HBM         96    13.4 ms  13.6 %
all-reduce.3   all-reduce          jit(train)/all-reduce          HBM         96    10.6 ms  10.7 %
infeed.1       infeed              jit(train)/infeed                          96    6.96 ms   7.0 %
copy.2         data formatting     jit(train)/data_formatting     HBM         96    2.88 ms   2.9 %

Host       Size  Mean step  All others  Slowest in
------  -------  ---------  ----------  ----------
host-a  17.9 kB    1.20 ms      15.0 %
host-b  17.9 kB    1.22 ms      14.7 %      1 step
"""  # noqa: E501 - as wide as it is printed


@pytest.mark.parametrize(("columns", "expected"), [(80, _AT_80), (200, _AT_200)])
def test_a_tpu_profile_is_printed_for_the_width_of_the_terminal(columns: int, expected: str, tmp_path: Path) -> None:
    pytest.importorskip("xprof")
    tpu_session(tmp_path)
    command = [sys.executable, "-m", "xprofiler", "summary", str(tmp_path), "--no-color"]
    ended = run_in_terminal(command, columns)
    assert (ended.code, ended.errors) == (0, "")
    assert ended.output == expected
    assert max(map(len, ended.output.splitlines())) <= columns


def test_without_a_terminal_names_are_whole(tmp_path: Path) -> None:
    pytest.importorskip("xprof")
    tpu_session(tmp_path)
    assert "jit(train)/convolution_fusion" in typed("summary", str(tmp_path)).output


def test_unknown_values_are_marked() -> None:
    shown = format_summary(Summary("s", "CPU", hosts=[Host("h", 1234)], notes=["no step marker " * 8]), 80)
    assert shown == textwrap.dedent(
        """\
        the profile does not show what limits this job: it has no steps and no thread
        that calls JAX

        s: 1 host, CPU, 0 steps

        Step time  not known: the program marks no steps
                   (jax.profiler.StepTraceAnnotation), or none was whole
        Busy       not known: the profile has no device, and no XLA operation that ran
                   on the CPU

        Host     Size
        ----  -------
        h     1.23 kB

        Note: no step marker no step marker no step marker no step marker no step marker
        no step marker no step marker no step marker"""
    )


def test_names_from_a_profile_cannot_control_the_terminal() -> None:
    evil = "\x1b[2J\x9b31m\rname\n\x07"
    summary = Summary(
        evil,
        evil,
        hosts=[Host(evil, 1)],
        steps=[Step(evil, 1.0, {evil: 1.0}, evil)],
        operations=[Operation(evil, evil, 1, 1.0, 100.0, evil, evil)],
        notes=[evil],
    )
    out = io.StringIO()
    Console(out=out).data(format_summary(summary, 80))
    assert not set(out.getvalue()) & set(map(chr, [*range(9), *range(11, 32), *range(127, 160)]))


@pytest.mark.parametrize("width", [60, 72, 80, 120])
def test_long_names_are_cut_before_a_line_is_too_long(width: int) -> None:
    operations = [Operation("fusion" * 30, "custom-call" * 9, 10**6, 1e6, 100.0, "jit(f)/" * 40, "Compute")]
    lines = format_summary(Summary("s", operations=operations), width).splitlines()
    table = lines[lines.index(next(line for line in lines if line.startswith("Operation"))) :]
    assert max(map(len, table)) <= width
    assert any("fusion" in line for line in table)
