"""A trainer as a user of PyTorch/XLA writes it: a lazy loss each step, StepTrace, a profile, goodput, and diagnose."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch
import torch_xla
import torch_xla.debug.profiler as xp
from cloud_tpu_diagnostics import diagnostic
from cloud_tpu_diagnostics.configuration import (
    debug_configuration,
    diagnostic_configuration,
    stack_trace_configuration,
)
from google_cloud_mldiagnostics import machinelearning_run, metrics, xprof
from ml_goodput_measurement.goodput import GoodputRecorder


def wait_for_batch() -> None:
    """Hang, as a data loader that lost its storage does."""
    print("hanging", flush=True)
    while True:
        time.sleep(0.1)


def main() -> None:
    """Train according to the flags."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--name", default="linear")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--serve-port", type=int, default=0)
    parser.add_argument("--train-until", help="a file: train until it is there")
    parser.add_argument("--hang", action="store_true")
    options = parser.parse_args()
    run = machinelearning_run(
        options.name, on_demand_xprof=bool(options.serve_port), on_demand_xprof_port=options.serve_port
    )
    recorder = GoodputRecorder(options.name, f"goodput_{options.name}", True)
    recorder.record_job_start_time()
    device = torch_xla.device()
    model = torch.nn.Linear(16, 16).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batch = torch.ones(32, 16, device=device)

    def train_step(step: int) -> None:
        recorder.record_step_start_time(step)
        with xp.StepTrace("train_step", step_num=step):  # It synchronises when it is left.
            loss = (model(batch) ** 2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            metrics.record("loss", loss, step=step)

    traces = stack_trace_configuration.StackTraceConfig(
        collect_stack_trace=options.hang, stack_trace_to_cloud=True, stack_trace_interval_seconds=1
    )
    debugging = debug_configuration.DebugConfig(stack_trace_config=traces)
    with diagnostic.diagnose(diagnostic_configuration.DiagnosticConfig(debug_config=debugging)):
        for step in range(options.steps):
            train_step(step)
        if options.hang:
            wait_for_batch()
    if options.profile:
        with xprof():
            for step in range(options.steps, 2 * options.steps):
                train_step(step)
    step = 2 * options.steps
    if options.train_until:
        print("training", flush=True)
        while not Path(options.train_until).exists():
            train_step(step)
            time.sleep(0.02)
            step += 1
    metrics.record("final_loss", (model(batch) ** 2).mean(), step=step)  # No step follows.
    recorder.record_job_end_time()
    print(run.name, flush=True)


main()
