"""Stack traces on request: SIGUSR1, or another signal where the program uses that itself.

No C code reads frames for this. faulthandler's handler would read those of running threads, and crash a healthy
program with a segmentation fault: once in 25 to 350 signals, even if it reads only the calling thread, which may be
in the middle of a call or return; it also overwrites errno. So the handler is CPython's, which sets a flag and writes a
byte to the wake-up descriptor. The first of these writes the dump:

1. the main thread, when it next executes Python: it knows exactly where it was interrupted;
2. after 50 ms a thread of this package: the main thread is stuck, or waits, in native code without the GIL;
3. after half a second another process, the companion or `Helper`, if the byte is still unread, or read and not
   answered, because the GIL is held: see `_companion.requests`. It has faulthandler dump all threads, which is safe as
   none of them executes Python.
"""

from __future__ import annotations

import _thread
import faulthandler
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

from ml_diagnostics_common.descriptors import Descriptor, with_high_number
from ml_diagnostics_common.guard import LOSSES
from ml_diagnostics_common.signal_wakeups import SignalWakeups, in_main_thread, subscribe, unsubscribe
from ml_diagnostics_common.worker import start

from cloud_tpu_diagnostics._collect.log_queue import flush_in_background, guarded_as, warn_once
from cloud_tpu_diagnostics._collect.watchdog import Output, is_left_harmless, make_harmless, undo_all
from cloud_tpu_diagnostics._dumps.text import signal_dump_text, write_at_once, write_in_parts
from cloud_tpu_diagnostics._signals import (
    FAULTHANDLER_DUMP,
    SignalsAmidText,
    handled_signals_or_none,
    real_time_signals,
    signal_name,
)

if TYPE_CHECKING:
    from ml_diagnostics_common.sidecar import Sidecar

__all__ = ["DumpRequests", "Helper"]

_MAIN_THREAD_SECONDS: Final = 0.05
"""The wait for the main thread: ten switch intervals of the GIL."""
_HANDOVER_SECONDS: Final = 0.001

# State of the process: its trace file names another signal than SIGUSR1.
_has_named_another = False


class DumpRequests:
    """Answers the signal from outside, from `start` to `stop`.

    Args:
        number: The descriptor that dumps are written to.
        is_nonblocking: Writing to it never waits for a reader.
        note: Called with a sentence for readers of the traces.
        writing: The lock that is held while a dump is written.
    """

    def __init__(self, number: int, *, is_nonblocking: bool, note: Callable[[str], None], writing: Any) -> None:
        self._given, self._is_nonblocking, self._note, self._writing = number, is_nonblocking, note, writing
        self._target: Descriptor | None = None
        self._owner = os.getpid()
        self._is_on = False
        self._undoing: list[Callable[[], object] | None] = []
        self._handler = self._on_signal  # One object: the handler is ours as long as it is this.
        self._fallback: Output | None = None
        self._is_fallback = False
        """Until the main thread installs the handler, faulthandler answers."""
        self._signals = SignalsAmidText()
        self._is_dumping = False
        self._unclaimed: deque[None] = deque()
        """One item if the thread has read the byte of a request; the thread or the handler removes it, and answers."""
        self._claims = self._claims_seen = 0
        """The number of requests that the thread has answered by itself, and how many of them the handler knows."""
        self._unwritten: deque[str] = deque()
        """Dumps that the main thread could not write without waiting."""
        self._is_claimed = _thread.allocate_lock()
        self._is_claimed.acquire()
        self._answers: tuple[Descriptor, Descriptor] | None = None
        self.wakeups: SignalWakeups | None = None
        self.signal: int | None = None
        """The signal that makes this process write all its stacks; None if none was free."""

    def start(self) -> None:
        """Start answering.

        Raises:
            OSError: The limit of open files is reached.
        """
        self._undoing.append(self._close)
        self._is_on = True
        self._target = Descriptor(with_high_number(os.dup(self._given)))
        read, write = os.pipe()
        self._answers = Descriptor(with_high_number(read)), Descriptor(with_high_number(write))
        for end in self._answers:
            os.set_blocking(end.number() or 0, False)
        self._undoing.append(lambda: unsubscribe(self._receive))
        self.wakeups = subscribe(self._receive)
        self._choose_signal()

    def stop(self) -> None:
        """Stop answering. The signal has no effect then: sent a moment too late, it must not end the program."""
        self._is_on = False
        undo_all(self._undoing)

    def write_to(self, number: int) -> None:
        """Write dumps to this descriptor, of which a copy is made, from now on."""
        self._target, self._is_nonblocking = Descriptor(with_high_number(os.dup(number))), True

    def recheck(self) -> None:
        """Choose another signal if the program uses ours by now; set the wake-up descriptor again."""
        if self.signal is not None and not self._is_ours(self.signal):
            self._choose_signal()
        elif (wakeups := self.wakeups) is not None:
            in_main_thread(wakeups.install)  # asyncio, for one, removes what it finds.

    def is_open(self) -> bool:
        """Return False once the program has closed our descriptors."""
        return (wakeups := self.wakeups) is None or wakeups.is_open

    @property
    def descriptors(self) -> dict[str, int]:
        """The descriptors by which another process sees unanswered requests, by name; none if one was closed."""
        wakeups, answers = self.wakeups, self._answers
        if wakeups is None or answers is None:
            return {}
        numbers = {"wakeups": wakeups.reader, "handling": wakeups.handling, "answers": answers[0].number()}
        known = {name: number for name, number in numbers.items() if number is not None}
        return known if len(known) == len(numbers) else {}

    @property
    def thread_ident(self) -> int:
        """The identifier of the thread that answers; 0 before it runs."""
        return (wakeups.thread_ident if (wakeups := self.wakeups) is not None else None) or 0

    # --- Which signal ---------------------------------------------------------------------------------

    def _choose_signal(self) -> None:
        """Take a signal that is free, and report which, unless it is SIGUSR1 as documented."""
        global _has_named_another
        self.signal = next(filter(self._take, [signal.SIGUSR1, signal.SIGUSR2, *real_time_signals()]), None)
        if self.signal == signal.SIGUSR1:
            if _has_named_another:  # An earlier block of this process, in the same file.
                self._note("SIGUSR1 is free: for stack traces at any time, send SIGUSR1.")
            return
        _has_named_another = True
        what = "no signal is free" if self.signal is None else f"send {signal_name(self.signal)} instead"
        sentence = f"SIGUSR1 is taken: for stack traces at any time, {what}."
        warn_once(("signal", self.signal), "%s", sentence)
        self._note(sentence)

    def _take(self, each: int) -> bool:
        current = signal.getsignal(each)
        if current is not _do_nothing and (current is not signal.SIG_DFL or each in handled_signals_or_none()):
            return False
        self._undoing.append(partial(self._release, each))
        if threading.get_ident() == threading.main_thread().ident:
            self._install(each)
            return True
        return self._install_fallback(each)

    def _install(self, each: int) -> None:
        signal.signal(each, self._handler)
        signal.siginterrupt(each, False)  # System calls continue, as without us.

    def _install_fallback(self, each: int) -> bool:
        """Let faulthandler wake our thread by what it writes, until the main thread executes Python again.

        It reads the frames of the thread that receives the signal: usually the main one, which executes none then.
        """
        writer = self.wakeups.writer if self.wakeups is not None else None
        if writer is None:
            return False
        self._fallback = Output(writer)
        try:
            faulthandler.unregister(each)  # It may know of an earlier block's, which a handler in Python has replaced.
            faulthandler.register(each, file=self._fallback, all_threads=False)
        except (OSError, RuntimeError, ValueError):
            return False
        self._fallback.hand_over()
        self._is_fallback = True
        in_main_thread(partial(self._replace_fallback, each))
        return True

    def _replace_fallback(self, each: int) -> None:
        if self._is_on and self._is_fallback and self._is_ours(each):
            self._silence(each)
            self._install(each)

    def _silence(self, each: int) -> None:
        """Make faulthandler write nothing, if it still answers."""
        self._is_fallback = False
        if self._fallback is not None:
            make_harmless(each, self._fallback, handler=signal.getsignal(each))

    def _is_ours(self, each: int) -> bool:
        current = signal.getsignal(each)
        if not self._is_fallback or self._fallback is None:
            return current is self._handler
        return current in (signal.SIG_DFL, _do_nothing) and self._fallback.is_in_use()

    def _release(self, each: int) -> None:
        if self._is_fallback and self._is_ours(each):
            self._silence(each)
        in_main_thread(partial(_put_down, each, self._handler))

    # --- Answers --------------------------------------------------------------------------------------

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        """Handle the signal, in the main thread."""
        if os.getpid() != self._owner:  # A forked child has none of our threads.
            self._dump(may_wait=False)
            return
        wakeups = self.wakeups
        if not self._is_on or self._is_dumping or wakeups is None:
            return  # Amid a dump the byte remains for the thread.
        if not self._is_to_answer(wakeups, number):
            return
        self._is_dumping = True
        try:
            self._dump(may_wait=False)
            self._acknowledge()
        except Exception as error:  # Out of memory, or too deep: the thread is not.
            LOSSES.add(f"diagnose: {type(error).__name__}")
            wakeups.send(bytes([number]))
        finally:
            self._is_dumping = False

    def _is_to_answer(self, wakeups: SignalWakeups, number: int) -> bool:
        """Return False if the thread has answered already; if the wake-up descriptor was replaced, it has not."""
        is_installed = wakeups.install()
        if wakeups.take(number) or self._claim_from_thread():
            return True
        if not is_installed:
            return True
        claims, self._claims_seen = self._claims_seen, self._claims
        # The thread may have read the byte in this moment. Left to it, the request would be lost if the block ends now.
        until = time.monotonic() + _MAIN_THREAD_SECONDS
        while claims == self._claims and time.monotonic() < until:
            time.sleep(_HANDOVER_SECONDS)
            if self._claim_from_thread():
                return True
        return False

    def _claim_from_thread(self) -> bool:
        """Take a request that the thread has read and not started to answer; return False if there is none."""
        try:
            self._unclaimed.pop()
        except IndexError:
            return False
        if self._is_claimed.locked():
            self._is_claimed.release()
        return True

    @guarded_as("dump the stacks of its threads")
    def _receive(self, data: bytes) -> None:
        """Handle signals that arrive, in our thread."""
        self._write_the_rest()
        if not self._is_request(data) or not self._is_on:
            return
        self._acknowledge()
        self._unclaimed.append(None)
        self._is_claimed.acquire(timeout=_MAIN_THREAD_SECONDS)
        try:
            self._unclaimed.pop()
        except IndexError:
            return
        self._claims += 1
        self._dump(may_wait=True)
        self._acknowledge()

    def _is_request(self, data: bytes) -> bool:
        if self.signal is None:
            return False
        if self._fallback is None:
            return self.signal in data
        # Its text may arrive after the handler has replaced it.
        return FAULTHANDLER_DUMP in data or self.signal in self._signals.numbers(data)

    def _dump(self, *, may_wait: bool) -> None:
        text = signal_dump_text(DumpRequests._on_signal.__code__, leave_out={self.thread_ident})
        if os.getpid() != self._owner:  # Forked while a thread of the parent was writing, maybe: no lock.
            self._write(text)
        elif may_wait:
            self._write_in_turn(text)
        elif self._unwritten or not self._writing.acquire(blocking=False):
            self._hand_over(text)
        else:
            try:
                rest = self._write_at_once(text)
            finally:
                self._writing.release()
            if rest:
                self._hand_over(rest)

    def _hand_over(self, text: str) -> None:
        """Let the thread write what the main thread cannot write without waiting."""
        self._unwritten.append(text)
        if (wakeups := self.wakeups) is not None:
            wakeups.send(b"\x7f")  # No signal has this number.

    def _write_the_rest(self) -> None:
        while self._unwritten:
            self._write_in_turn(self._unwritten.popleft())

    def _write_in_turn(self, text: str) -> None:
        """Write in our thread, after what another one writes, which may wait for its reader."""
        while not self._writing.acquire(timeout=_MAIN_THREAD_SECONDS):
            self._acknowledge()
        try:
            self._write(text)
        finally:
            self._writing.release()

    def _write(self, text: str) -> None:
        target = self._target  # Kept open by this reference.
        number = target.number() if target is not None else None
        if number is not None:
            write_in_parts(number, text, self._goes_on, is_nonblocking=self._is_nonblocking)

    def _write_at_once(self, text: str) -> str:
        target = self._target
        number = target.number() if target is not None else None
        if number is None:
            return ""
        data = memoryview(text.encode("ascii", "backslashreplace"))
        return bytes(write_at_once(number, data, is_nonblocking=self._is_nonblocking)).decode("ascii")

    def _goes_on(self) -> bool:
        """Return True while answering; acknowledge too, so that other processes do not take this thread for stuck."""
        self._acknowledge()
        return self._is_on

    def _acknowledge(self) -> None:
        """Show other processes that Python runs."""
        answers = self._answers
        number = answers[1].number() if answers is not None else None
        if number is not None:
            try:
                os.write(number, b"\n")
            except OSError:
                pass  # Full, as no other process reads it.

    def _close(self) -> None:
        # What is being written now is closed with the last reference to it.
        self._target = self._answers = self.wakeups = None


def _do_nothing(number: int, frame: FrameType | None) -> None:
    """Ignore the signal: the handler after the block."""


def _put_down(each: int, handler: object) -> None:
    if signal.getsignal(each) is handler or (signal.getsignal(each) is signal.SIG_DFL and is_left_harmless(each)):
        signal.signal(each, _do_nothing)
        signal.siginterrupt(each, False)


class Helper:
    """A small process beside a block without a companion: it asks faulthandler if Python does not answer a request.

    Nothing in the job itself can do so: a Python thread waits for the GIL, and this package has no C code.

    Args:
        requests: The requests that it watches.
        dump_signal: The signal that it sends.
    """

    def __init__(self, requests: DumpRequests, dump_signal: int) -> None:
        self._requests, self._dump_signal = requests, dump_signal
        self._is_over = False
        self.sidecar: Sidecar | None = None
        """The process, once it was started."""
        self.thread_ident = 0
        """The identifier of the thread that starts the process; 0 while there is none."""

    def start(self) -> None:
        """Start the process in a thread; return at once."""
        start(self._run, "cloud-tpu-diagnostics-helper")

    def stop(self) -> None:
        """End the process."""
        self._is_over = True
        if self.sidecar is not None:
            self.sidecar.end_messages()
            self.sidecar.close()  # A cycle refers to it: its descriptor would stay open until garbage is collected.

    @guarded_as("start a process beside the job")
    def _run(self) -> None:
        self.thread_ident = threading.get_ident()
        try:
            self._start()
        finally:
            self.thread_ident = 0

    def _start(self) -> None:
        from ml_diagnostics_common.process_hooks import import_undisturbed

        import_undisturbed("ml_diagnostics_common.sidecar")  # Here, off the thread of the rounds.
        from ml_diagnostics_common.sidecar import Sidecar

        descriptors = self._requests.descriptors
        if not descriptors:
            return  # The program has closed them.
        settings = {"dump_signal": self._dump_signal}
        try:
            self.sidecar = Sidecar("cloud_tpu_diagnostics._companion.requests", settings, descriptors=descriptors)
            self.sidecar.wait()  # Until it is not a child of this process any more.
        except OSError as error:
            if not self._is_over:  # The end of the block closes the descriptors.
                warn_once(
                    "no helper",
                    "No process can be started beside the job (%s): while native code holds the GIL, a signal leaves "
                    "no stack traces. The periodic ones continue.",
                    error,
                )
                flush_in_background()
        finally:
            if self._is_over:  # Stopped meanwhile.
                self.stop()
