from __future__ import annotations

import contextlib

import ml_diagnostics
import pytest

from .frameworks import hook
from .recorded_jobs import QUIET, activities

syncs: list[list[str]] = []


def sync(wait: bool = False, reset_scope: bool = True) -> None:
    syncs.append(activities("digits"))


def test_each_step_ends_with_a_sync_before_the_next_batch_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    syncs.clear()
    with hook("torch_xla", "torch_xla", sync=sync) as hooks:
        monkeypatch.setattr(hooks.torch_xla, "sync", sync)  # Also of the real package.
        with ml_diagnostics.instrument("digits", run=False, **QUIET):
            seen = list(hooks.steps("ab", start=7))
    assert seen == [(7, "a"), (8, "b")]
    assert [each[-1] for each in syncs] == ["step 7", "step 8"]
    assert activities("digits") == ["start", "load", "step 7", "load", "step 8", "load", "end"]


def test_a_loop_that_is_left_half_way_does_not_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    syncs.clear()
    with hook("torch_xla", "torch_xla", sync=sync) as hooks:
        monkeypatch.setattr(hooks.torch_xla, "sync", sync)
        with ml_diagnostics.instrument("digits", run=False, **QUIET) as job:
            for _ in hooks.steps("ab", job=job):
                break
            with contextlib.suppress(ZeroDivisionError):
                for _ in hooks.steps("ab", start=1):
                    raise ZeroDivisionError
    assert syncs == []
    assert [each for each in activities("digits") if "step" in each] == ["step 0", "step 1"]
