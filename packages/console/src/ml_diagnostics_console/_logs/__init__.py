"""The output of the processes of a job: `mldiagnostics logs`.

lines        lines with their times, safe to show, of many hosts in one order: pure
step_times   when a host was at a step: pure
sources      where the text of a process is: a file of `run`, its own log file, its pod, or its entries
showing      which processes are shown, and how
"""
