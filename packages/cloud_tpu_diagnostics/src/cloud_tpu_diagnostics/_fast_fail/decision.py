"""Decides when a job has failed, and which of its processes was the first cause. Pure: the time is an argument.

A process that fails by itself decides it, after a moment in which the others may report an earlier failure. The rest
needs more than one report, as the same may be seen in a healthy job:

- failures that another process can cause, since that one may be reported late, or not at all;
- a process that ends well while others are in a later step, or before its last step if most go on in other steps, or
  that did not end in time after it was asked to, if all others make no progress for longer than ever before;
- with `hang`, all processes without progress, none of which saves, evaluates, waits, compiles or is debugged.

A lost connection is never a reason: it only names a suspect once other processes have failed. While a process was asked
to end, none is ended: jobs save then, each in its own time.
"""

from __future__ import annotations

from collections import Counter, deque
from typing import Final

from ml_diagnostics_common.story import Confidence, ProcessEnd, Role, story_of

from cloud_tpu_diagnostics._fast_fail.messages import RefusedError, short
from cloud_tpu_diagnostics._fast_fail.reports import ASKED, ENDED, Event, Hello, JobState
from cloud_tpu_diagnostics.configuration.first_cause import FirstCause

__all__ = ["ASKED_SECONDS", "CASCADE_SECONDS", "CLEAN_SECONDS", "REQUEST_SECONDS", "SETTLING_SECONDS", "Decision"]

SETTLING_SECONDS: Final = 0.25
"""The wait for an earlier failure, once one process has failed by itself."""
CASCADE_SECONDS: Final = 2.0
"""The same if all failures so far can be effects of another one."""
CLEAN_SECONDS: Final = 10.0
"""The least time without progress of all others, after a process has ended well."""
ASKED_SECONDS: Final = 30.0
"""The time that a process has to end after it was asked to: the default of Kubernetes."""
REQUEST_SECONDS: Final = 600.0
"""The time after which a process has ignored the request: JAX handles SIGTERM, and a job may run on for days."""
_SAVING_SECONDS: Final = 300.0
"""The same while it saves a checkpoint."""
_SILENCE_FACTOR: Final = 3.0
"""The ratio of a silence that counts to the longest one before."""
_FRESH_SECONDS: Final = 6.0
"""A state that is older is unknown: companions report every two seconds."""
_CHECK_SECONDS: Final = 10.0
"""The wait for a stack that shows if a process compiles; one that compiles answers."""
_CLOCKS_NS: Final = 100_000_000
"""The error of the clocks of two hosts after their correction."""
_UNKNOWN_CLOCKS_NS: Final = 1_000_000_000
_LEAST_SAMPLES: Final = 3
_SAMPLES: Final = 16
_MOST_NAMED: Final = 8
_IN_A_STEP: Final = frozenset({"step", "sync"})
_NEVER_STUCK: Final = frozenset({"checkpoint", "eval", "wait", "ended", "compile"})


class Decision:
    """The decision on one attempt of a job.

    Args:
        processes: How many processes the job has.
        hang: True to decide on hangs, too.
    """

    def __init__(self, processes: int, *, hang: bool = False) -> None:
        self._processes, self._hang = processes, hang
        self._peers: dict[int, _Peer] = {}
        self._is_changed = False
        self._due: float | None = None
        """When the failures that are known decide."""
        self._unanswered: dict[int, float] = {}
        """The processes that a stack is needed of, and since when."""
        self.first_cause: FirstCause | None = None
        """None until it is decided."""
        self.first: frozenset[int] = frozenset()
        """The indexes of the first cause."""

    # --- Reports --------------------------------------------------------------------------------------

    def join(self, hello: Hello, now: float) -> None:
        """Add a process, or another connection of the same one.

        Raises:
            RefusedError: The job has no such process, or another process has its index.
        """
        if hello.process_index >= self._processes:
            raise RefusedError("garbage")
        known = self._peers.get(hello.process_index)
        if known is not None and known.hello[:3] != hello[:3]:
            raise RefusedError("duplicate")
        if known is None or known.hello != hello:  # Of a later block: how the earlier one was left does not count.
            self._peers[hello.process_index] = _Peer(hello)
            self._is_changed = True
        self._peers[hello.process_index].is_connected = True

    def lose(self, index: int) -> None:
        """Note that a process's connection is closed."""
        self._peers[index].is_connected = False
        self._is_changed = True

    def compare_clocks(self, index: int, sent_ns: int, received_ns: int, *, is_exact: bool = False) -> None:
        """Add a message's times, by the clocks of its sender and of the hub; exact ones are of the same clock."""
        self._peers[index].delays_ns.extend([received_ns - sent_ns] * (_LEAST_SAMPLES if is_exact else 1))

    def report(self, index: int, state: JobState, now: float) -> None:
        """Take the state of a process."""
        peer = self._peers[index]
        peer.state, peer.state_at = state, now
        peer.progress_at = None if state.progress_age is None else now - state.progress_age
        if not state.is_suspected:
            peer.suspected_at = None
        elif peer.suspected_at is None:
            peer.suspected_at = now

    def add(self, index: int, event: Event, now: float) -> None:
        """Take an event of a process."""
        peer, self._is_changed = self._peers[index], True
        end = event.end
        if event.event == ASKED or end.was_asked or end.signal == "SIGTERM" or end.exit_code == 128 + 15:
            peer.asked_at = peer.asked_at if peer.was_asked(now) else now
        if event.event == ASKED:
            return
        if peer.end is None:  # An exception in the block counts more than the exit status after it.
            peer.end, peer.ended_at, peer.last_step = end, now, event.step
            peer.is_early = event.is_early
        peer.is_over = peer.is_over or event.event == ENDED

    # --- The decision ---------------------------------------------------------------------------------

    def decide(self, now: float) -> bool:
        """Return True once there is a first cause."""
        if self.first_cause is None and self._hold_until(now) <= now:
            self._decide_on_failures(now)
            if self.first_cause is None and self._due is None:
                self._decide_on_silence(now)
        return self.first_cause is not None

    def seconds_to_next(self, now: float) -> float:
        """Return when to call `decide` again if nothing is received."""
        if self._due is None or self.first_cause is not None:
            return 0.5
        return max(0.0, max(self._due, min(self._hold_until(now), now + 0.5)) - now)

    def needs_stack(self, index: int) -> bool:
        """Return True if the stack of a process is needed, to see if it compiles."""
        return index in self._unanswered

    def is_undecided(self) -> bool:
        """Return True while a process runs that others could still fail for."""
        return self.first_cause is None and any(not peer.is_gone for peer in self._peers.values())

    @property
    def connected(self) -> int:
        """The number of processes with a connection."""
        return sum(peer.is_connected for peer in self._peers.values())

    def _hold_until(self, now: float) -> float:
        """Return until when nothing is decided, as processes were asked to end."""
        until = 0.0
        if all(peer.is_over for peer in self._peers.values()):
            return until
        for peer in self._peers.values():
            if peer.asked_at is None:
                continue
            until = max(until, peer.asked_at + ASKED_SECONDS)
            is_saving = not peer.is_gone and peer.state is not None and peer.state.phase == "checkpoint"
            if is_saving and now < peer.asked_at + _SAVING_SECONDS:
                until = max(until, now + 1.0)
        return until

    def _decide_on_failures(self, now: float) -> None:
        if not self._is_changed and (self._due is None or now < self._due):
            return
        self._is_changed = False
        known = list(self._peers.values())
        ends = [peer.corrected_end() for peer in known]
        ends += [ProcessEnd()] * min(2, self._processes - len(known))  # Not one of them is alone.
        failed = [peer for peer in known if peer.end is not None]
        is_known = all(len(peer.delays_ns) >= _LEAST_SAMPLES for peer in failed)
        story = story_of(ends, clocks_ns=_CLOCKS_NS if is_known else _UNKNOWN_CLOCKS_NS)
        for peer, role in zip(known, story.roles, strict=False):
            peer.role = role
        own = [peer.ended_at for peer in known if peer.role is Role.OWN]
        cascade = [peer.ended_at for peer in known if peer.role is Role.CASCADE]
        due = [min(times) + wait for times, wait in ((own, SETTLING_SECONDS), (cascade, CASCADE_SECONDS)) if times]
        self._due = min(due, default=None)
        if self._due is not None and now >= self._due and story.confidence is not None:
            self._conclude([known[index] for index in story.first if index < len(known)], story.confidence)

    def _decide_on_silence(self, now: float) -> None:
        running = [peer for peer in self._peers.values() if peer.end is None]
        is_whole = len(self._peers) == self._processes and bool(running)
        if not is_whole or not all(peer.is_connected and now - peer.state_at <= _FRESH_SECONDS for peer in running):
            self._unanswered = {}
            return
        first = self._missing_in_a_step(running, now) or (self._stuck(running, now) if self._hang else [])
        if first and self._none_compiles(running, now):
            self._conclude(first, Confidence.POSSIBLE)
        elif not first:
            self._unanswered = {}

    def _missing_in_a_step(self, running: list[_Peer], now: float) -> list[_Peer]:
        """Return the processes that ended well, or were asked to, and that all others have waited for since."""
        if not all(peer.is_silent(now) and peer.phase in _IN_A_STEP for peer in running):
            return []
        are_asked = any(peer.was_asked(now) for peer in running)
        steps = [peer.state.step for peer in running if peer.state is not None and peer.state.step is not None]
        # In a job that stops early as a whole, most have ended, or are in the same step.
        is_minority = 2 * len(running) > self._processes and len(steps) == len(running)
        missing = [
            peer
            for peer in self._peers.values()
            if peer.end is not None
            and now - peer.ended_at >= CLEAN_SECONDS
            and ((peer.is_early and is_minority and peer.step not in steps) or (peer.was_stopped and not are_asked))
        ]
        return sorted(missing, key=lambda peer: peer.ended_at)[:1]

    def _stuck(self, running: list[_Peer], now: float) -> list[_Peer]:
        """Return the processes of which the stack differs from that of most, if the whole job is stuck."""
        suspected = [peer.suspected_at for peer in running if peer.suspected_at is not None]
        if len(running) < self._processes or not suspected:
            return []
        since = min(suspected)
        for peer in running:
            is_silent = peer.suspected_at is not None or (peer.state_at > since and peer.is_silent(now))
            if not is_silent or peer.phase in _NEVER_STUCK:
                return []
        frames = Counter((peer.state or JobState()).frame for peer in running)
        frame, count = frames.most_common(1)[0]
        different = [peer for peer in running if (peer.state or JobState()).frame != frame]
        return different if different and frame is not None and 2 * count > len(running) else running

    def _none_compiles(self, running: list[_Peer], now: float) -> bool:
        """Return True if the stacks of all show that they do not compile; ask for those that are unknown."""
        states = [(peer.hello.process_index, peer.state or JobState()) for peer in running]
        since = self._unanswered
        self._unanswered = {index: since.get(index, now) for index, state in states if state.is_compiling is not False}
        if any(state.is_compiling or state.is_traced for _, state in states):
            return False
        return all(now - asked_at >= _CHECK_SECONDS for asked_at in self._unanswered.values())

    def _conclude(self, first: list[_Peer], confidence: Confidence) -> None:
        self._unanswered = {}
        named = first[:_MOST_NAMED]
        end = named[0].end or ProcessEnd(how="hang")
        self.first = frozenset(peer.hello.process_index for peer in first)
        self.first_cause = FirstCause(
            process_indices=tuple(peer.hello.process_index for peer in named),
            hosts=tuple(short(peer.hello.host, 60) for peer in named),
            how=end.how,
            signal=end.signal or None,
            exit_code=end.exit_code,
            exception=end.exception or None,
            step=named[0].step,
            confidence=confidence.value,
            ended_ns=end.ended_ns,
            message=short(_sentence(named, end, confidence)),
        )


class _Peer:
    """All that is known of one process."""

    def __init__(self, hello: Hello) -> None:
        self.hello = hello
        self.is_connected = True
        self.delays_ns: deque[int] = deque(maxlen=_SAMPLES)
        """The delays of its messages, by two clocks: the least is the clocks' difference and the network's time."""
        self.state: JobState | None = None
        self.state_at = 0.0
        self.progress_at: float | None = None
        self.suspected_at: float | None = None
        self.asked_at: float | None = None
        self.end: ProcessEnd | None = None
        self.ended_at = 0.0
        self.last_step: int | None = None
        self.is_early = False
        """True if it had steps to do."""
        self.is_over = False
        """True once the process has ended."""
        self.role = Role.NONE

    @property
    def is_gone(self) -> bool:
        """True once it has ended or left its block, or its connection is closed."""
        return self.end is not None or not self.is_connected

    def was_asked(self, now: float) -> bool:
        """Return True if it was asked to end recently."""
        return self.asked_at is not None and now - self.asked_at < REQUEST_SECONDS

    @property
    def was_stopped(self) -> bool:
        """True if it was asked to end, and has not ended by itself in time: with 0 it would have."""
        return self.role is Role.ASKED and self.end is not None and bool(self.end.signal or self.end.exit_code)

    @property
    def step(self) -> int | None:
        """Its last step."""
        state_step = None if self.state is None else self.state.step
        return state_step if self.last_step is None else self.last_step

    def corrected_end(self) -> ProcessEnd:
        """Return its end by the clock of the hub."""
        end = self.end or ProcessEnd(is_silent=not self.is_connected)
        ended_ns = end.ended_ns
        if ended_ns is not None and self.delays_ns:
            ended_ns += min(self.delays_ns)
        if end.how == "killed_or_os_exit":  # Its parent knows how; it may have exited with 0.
            end = end._replace(how="clean")
        was_asked = end.was_asked or (self.end is not None and self.was_asked(self.ended_at))
        return end._replace(ended_ns=ended_ns, was_asked=was_asked, host=self.hello.host)

    @property
    def phase(self) -> str | None:
        """The phase that it published last."""
        return None if self.state is None else self.state.phase

    def is_silent(self, now: float) -> bool:
        """Return True if it makes no progress, for longer than any step or pause in a step before took."""
        if self.state is None or self.progress_at is None or self.state.is_traced:
            return False
        return now - self.progress_at >= max(CLEAN_SECONDS, _SILENCE_FACTOR * self.state.longest_silence)


def _sentence(named: list[_Peer], end: ProcessEnd, confidence: Confidence) -> str:
    names = [f"process {peer.hello.process_index} on {peer.hello.host}" for peer in named]
    subject = names[0] if len(names) == 1 else f"{', '.join(names[:-1])} or {names[-1]}"
    step = "" if named[0].step is None else f" at step {named[0].step}"
    what = {
        "exception": f"raised {end.exception or 'an exception'}",
        "signal": f"was ended by {end.signal}",
        "out_of_memory": "was killed because memory ran out",
        "exit": f"exited with code {end.exit_code}",
        "clean": "ended though the others continued",
        "hang": "makes no progress, and neither do the others",
        "": "is silent",
    }.get(end.how, "exited without recording its end")
    return f"{subject} {what}{step}{'' if confidence is Confidence.PROVEN else f' ({confidence.value})'}"
