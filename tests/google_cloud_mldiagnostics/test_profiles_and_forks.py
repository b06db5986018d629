"""A child that is forked while its parent profiles has profiles of its own, of a run of its own."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from typing import Any

import pytest
from google_cloud_mldiagnostics._profiling import captures
from google_cloud_mldiagnostics._profiling.captures import captures_of_this_process, finish_profiles
from google_cloud_mldiagnostics._profiling.uploads import deliveries_of_this_process
from google_cloud_mldiagnostics.core.xprof import Xprof

from .profiled_runs import FileEngine, profiled_run, xplanes


@pytest.fixture(autouse=True)
def _engine(monkeypatch: pytest.MonkeyPatch, in_production: None) -> None:
    monkeypatch.setattr(captures, "engine_for", lambda framework: FileEngine())


def in_child(work: Callable[[], Any]) -> bool:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # JAX warns of any fork.
        child = os.fork()
    if child == 0:
        code = 1
        try:
            code = 0 if work() else 2
        finally:
            os._exit(code)
    return os.waitpid(child, 0)[1] == 0


def test_a_run_that_the_child_starts_is_profiled_and_the_parents_profile_continues() -> None:
    with profiled_run("parents") as parent:
        profile = Xprof(session_id="parents")
        profile.start()

        def work() -> bool:
            with profiled_run("childs") as child:
                with Xprof(session_id="childs"):
                    pass
                return xplanes(child.folder) == ["profiles/plugins/profile/childs/host-a.xplane.pb"]

        assert in_child(work)
        assert xplanes(parent.folder / "profiles") == []
        profile.stop()
        assert xplanes(parent.folder / "profiles") == ["plugins/profile/parents/host-a.xplane.pb"]


def test_an_open_profile_of_a_child_ends_with_the_child() -> None:
    with profiled_run("parents"), Xprof():

        def work() -> bool:
            with profiled_run("childs") as child:
                Xprof(session_id="open").start()
                captures.finish_profiles()
                return len(xplanes(child.folder / "profiles")) == 1

        assert in_child(work)


def test_a_child_leaves_its_parents_profile_alone_when_it_ends() -> None:
    with profiled_run("parents") as parent:
        profile = Xprof(session_id="parents")
        profile.start()

        def work() -> bool:
            profile.stop()
            return finish_profiles(1) and captures_of_this_process().current is None

        assert in_child(work)
        assert captures_of_this_process().current is not None
        profile.stop()
        assert len(xplanes(parent.folder / "profiles")) == 1


def test_a_forked_child_has_captures_and_deliveries_of_its_own() -> None:
    ours = captures_of_this_process(), deliveries_of_this_process()
    assert in_child(lambda: captures_of_this_process() is not ours[0] and deliveries_of_this_process() is not ours[1])
    assert (captures_of_this_process(), deliveries_of_this_process()) == ours
