"""The first cause of a failure is the process that failed by itself, whatever the clocks of its hosts show."""

from __future__ import annotations

import random
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ml_diagnostics_common.story import CASCADE_TEXTS, CascadeText, Confidence, ProcessEnd, Role, recorded_end, story_of

SECOND_NS = 1_000_000_000

GLOO = (
    "XlaRuntimeError: FAILED_PRECONDITION: Buffer Definition Event: Gloo all-reduce failed: [external/gloo/gloo/"
    "transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:59714"
)
HEARTBEAT = (
    "JaxRuntimeError: UNAVAILABLE: The following tasks are unhealthy (stopped sending heartbeats): "
    "/job:jax_worker/replica:0/task:1"
)
BARRIER = "JaxRuntimeError: DEADLINE_EXCEEDED: Barrier timed out. Id: PjRT_Client_Connect::0"

FAULTS = {
    "SIGKILL": ProcessEnd("signal", signal="SIGKILL"),
    "SIGSEGV": ProcessEnd("signal", signal="SIGSEGV"),
    "out of memory": ProcessEnd("out_of_memory", signal="SIGKILL"),
    "exception": ProcessEnd("exception", exception="ValueError: batch 12 is empty"),
    "an exception, and JAX's abort in the shutdown": ProcessEnd(
        "signal", signal="SIGABRT", exception="OSError: [Errno 28] No space left on device"
    ),
    "sys.exit(3)": ProcessEnd("exit", exit_code=3),
    "SIGTERM": ProcessEnd("signal", signal="SIGTERM"),
    "SIGTERM and a handler": ProcessEnd("exit", exit_code=0, was_asked=True),
    "killed on a kernel that hides the status": ProcessEnd("killed_or_os_exit"),
}
SURVIVORS = [
    ProcessEnd("exception", exception=GLOO),
    ProcessEnd("exception", exception=HEARTBEAT),
    ProcessEnd("signal", exception=GLOO, signal="SIGABRT"),
    ProcessEnd("signal", signal="SIGABRT"),
    ProcessEnd("exit", exit_code=134),
    ProcessEnd("signal", exception=GLOO, signal="SIGKILL"),  # Its cluster ended it after that.
]
OF_FAST_FAIL = [
    ProcessEnd("exit", exit_code=76, was_ended=True),
    ProcessEnd("signal", signal="SIGKILL", was_ended=True),
    ProcessEnd("exit", exit_code=76, was_ended=True, was_asked=True),
]


@pytest.mark.parametrize("fault", FAULTS)
@given(seed=st.integers(0, 2**32))
def test_the_culprit_is_first_with_clocks_up_to_a_minute_apart(fault: str, seed: int) -> None:
    draw = random.Random(seed)
    count, culprit = draw.randrange(2, 9), draw.randrange(2)
    ends = [draw.choice(SURVIVORS) for _ in range(count)]
    ends[culprit] = FAULTS[fault]
    # The survivors fail up to 50 ms before the end of the culprit is seen, or minutes later.
    ends = [
        end._replace(ended_ns=int((100 + draw.uniform(-60, 60) + draw.choice([-0.05, 0, 0.1, 104])) * SECOND_NS))
        for end in ends
    ]
    story = story_of(ends)
    assert story.first == (culprit,)
    assert story.confidence is Confidence.PROVEN
    assert {role for index, role in enumerate(story.roles) if index != culprit} == {Role.CASCADE}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("ended", OF_FAST_FAIL)
def test_a_process_that_fast_fail_ended_is_never_the_first_cause(fault: str, ended: ProcessEnd) -> None:
    culprit = FAULTS[fault]._replace(ended_ns=60 * SECOND_NS)  # By a clock that is ahead.
    story = story_of([ended._replace(ended_ns=SECOND_NS), culprit, ended._replace(ended_ns=2 * SECOND_NS)])
    assert (story.first, story.confidence) == ((1,), Confidence.PROVEN)
    assert story.roles[0] is story.roles[2] is Role.TEARDOWN


OF_SURVIVORS = [
    GLOO,
    HEARTBEAT,
    BARRIER,
    "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection reset by peer",
    "XlaRuntimeError: UNAVAILABLE: failed to connect to all addresses; last error: UNKNOWN: Socket closed",
    "JaxRuntimeError: INTERNAL: Coordination service has stopped",
    "XlaRuntimeError: INTERNAL: NCCL operation ncclGroupEnd() failed: remote process exited",
    "DistBackendError: NCCL error in: ProcessGroupNCCL.cpp, ncclRemoteError: A call failed possibly due to a peer",
    "XlaRuntimeError: INTERNAL: DCN transfer failed, peer slice 1 is gone",
    "RendezvousConnectionError: The connection to the C10d store has failed",
]


@pytest.mark.parametrize("text", OF_SURVIVORS)
def test_texts_of_survivors_are_recognised(text: str) -> None:
    story = story_of([ProcessEnd("exception", 1, exception=text), ProcessEnd("signal", 2, signal="SIGKILL")])
    assert story.roles[0] is Role.CASCADE


@pytest.mark.parametrize("known", CASCADE_TEXTS, ids=lambda known: known.pattern)
def test_each_text_of_the_list_has_an_example_and_a_source(known: CascadeText) -> None:
    assert any(re.search(known.pattern, text, re.IGNORECASE) for text in OF_SURVIVORS)
    assert known.source


@pytest.mark.parametrize(
    "text",
    [
        "ConnectionResetError: [Errno 104] Connection reset by peer",
        "OSError: gs://bucket/state: Broken pipe",
        "ReadTimeout: HTTPSConnectionPool: the heartbeat of the server is late",
        "ValueError: loss is nan",
    ],
)
def test_a_failed_request_of_the_program_is_its_own(text: str) -> None:
    assert story_of([ProcessEnd("exception", 1, exception=text), SURVIVORS[0]]).roles[0] is Role.OWN


def test_the_only_process_of_a_job_has_nobody_to_follow() -> None:
    for end in [*SURVIVORS, FAULTS["SIGKILL"]]:
        assert story_of([end]) == ((Role.OWN,), (0,), Confidence.PROVEN)


def test_two_failures_that_clocks_cannot_order_are_both_named() -> None:
    own = FAULTS["exception"]
    first, second = own._replace(ended_ns=5 * SECOND_NS), own._replace(ended_ns=5 * SECOND_NS + 4_000_000)
    ends = [SURVIVORS[0], first, second._replace(host="host-2")]
    assert story_of(ends).first == (1, 2)
    assert story_of(ends).confidence is Confidence.LIKELY
    assert story_of(ends, clocks_ns=1_000_000).first == (1,)
    assert story_of([SURVIVORS[0], first, second]).first == (1,), "one host has one clock"


def test_the_same_exception_on_all_is_one_cause() -> None:
    ends = [FAULTS["exception"]._replace(ended_ns=index, host=f"host-{index}") for index in range(4)]
    assert story_of(ends).first == (0, 1, 2, 3)


def test_what_kubernetes_kills_after_a_failure_did_not_cause_it() -> None:
    ends = [
        FAULTS["exception"]._replace(ended_ns=10 * SECOND_NS),
        ProcessEnd("signal", 40 * SECOND_NS, signal="SIGKILL"),
        ProcessEnd("signal", 12 * SECOND_NS, signal="SIGTERM"),
    ]
    assert story_of(ends) == ((Role.OWN, Role.TEARDOWN, Role.TEARDOWN), (0,), Confidence.PROVEN)


@pytest.mark.parametrize("signal", ["SIGKILL", "SIGTERM"])
def test_a_job_that_is_ended_as_a_whole_has_no_culprit(signal: str) -> None:
    ends = [ProcessEnd("signal", index * 10_000_000, signal=signal) for index in range(3)]
    assert story_of(ends) == ((Role.TEARDOWN,) * 3, (), None)


def test_a_job_that_is_ended_after_it_was_stuck_has_no_culprit() -> None:
    ends = [ProcessEnd("signal", index * 60 * SECOND_NS, signal="SIGKILL", was_stuck=True) for index in range(3)]
    assert story_of(ends).first == ()


def test_without_an_own_end_the_process_that_is_silent_or_that_left_is_the_suspect() -> None:
    silent, left, running = ProcessEnd(is_silent=True), ProcessEnd("clean", 5), ProcessEnd()
    assert story_of([SURVIVORS[0], silent, left]).first == (1,)
    assert story_of([SURVIVORS[0], left, running]).first == (1,)
    assert story_of([SURVIVORS[0], left]).confidence is Confidence.POSSIBLE
    assert story_of([SURVIVORS[0]._replace(ended_ns=7), SURVIVORS[1]._replace(ended_ns=9 * SECOND_NS)]).first == (0,)


def test_a_healthy_end_has_no_cause() -> None:
    clean, running = ProcessEnd("clean", 5), ProcessEnd()
    assert story_of([clean, clean]) == ((Role.CLEAN, Role.CLEAN), (), None)
    assert story_of([clean, running]).first == ()
    assert story_of([running, ProcessEnd(is_silent=True)]).first == ()
    assert story_of([]) == ((), (), None)


@pytest.mark.parametrize(
    ("payload", "expected"),
    [
        ({"how": "exit", "exit_code": 3.0, "ended_ns": "12"}, ProcessEnd("exit", 12, exit_code=3, host="a")),
        ({"how": "exception", "exception": "SystemExit"}, ProcessEnd("exception", 7, host="a")),
        ({"exit_code": True, "ended_ns": -1.5, "signal": None}, ProcessEnd("", 7, host="a")),
        ({"ended_by": "fast_fail"}, ProcessEnd("", 7, host="a", was_ended=True)),
        ({"ended_by": "fast_fail", "is_first_cause": True}, ProcessEnd("", 7, host="a")),
    ],
)
def test_a_recorded_end_is_read_in_any_form(payload: dict[str, object], expected: ProcessEnd) -> None:
    assert recorded_end(payload, 7, "a") == expected
