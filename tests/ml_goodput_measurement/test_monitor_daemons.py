"""A trainer that makes itself a daemon, or has no descriptors left: its monitor goes on, and touches nothing of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from .monitored_trainers import Trainer, goodput_points, last_step

_MINE = """
train((0, 20))
recorder.flush()
del recorder
monitor.start_goodput_uploader()
first = helper()
child = os.fork() if {has_child} else None  # It holds our ends too, so that the helper does not see them closed.
if child == 0:
    os.close(1); os.close(2)
    time.sleep(60)
    os._exit(0)
os.closerange(3, 1024)
mine = [os.open(f"{{folder}}-{{number}}", os.O_RDWR | os.O_CREAT) for number in range(20)]
mine += [os.dup2(mine[0], number) for number in range(900, 920)]  # Those of our sockets among them.
for number in mine:
    os.write(number, b"SECRET\\n" * 9)
    os.lseek(number, 0, 0)
monitor.start_rolling_window_goodput_uploader([60])
limit = time.monotonic() + 60
while helper() in (None, first) and time.monotonic() < limit:
    time.sleep(0.01)
print("again" if helper() not in (None, first) else "gone")
monitor.stop_rolling_window_goodput_uploader()
monitor.stop_goodput_uploader()
if child:
    os.kill(child, signal.SIGKILL)
assert all(os.fstat(number).st_size == 63 and os.lseek(number, 0, 1) == 0 for number in mine)
"""


@pytest.mark.parametrize("has_child", [False, True])
def test_files_that_a_trainer_opens_after_it_closed_all_are_not_touched_and_uploads_go_on(
    folder: Path, has_child: bool
) -> None:
    program = _MINE.format(has_child=has_child)
    if has_child:
        program = program.replace("first =", "monitor._uploaders._process._flush_seconds = 1; first =")
    output, errors = Trainer(program, folder).finish()
    assert output == "again\n"
    assert errors.count("ended by itself") == 1
    assert "SECRET" not in errors
    assert goodput_points(folder)


def test_a_stop_after_all_was_closed_writes_the_last_point(folder: Path) -> None:
    trainer = Trainer(
        """
train((0, 20))
recorder.flush()
del recorder
monitor.start_goodput_uploader()
os.closerange(3, 1024)
mine = [os.open(__file__, os.O_RDONLY) for _ in range(20)]
monitor.stop_goodput_uploader()
for number in mine:
    os.close(number)  # Each is still there.
""",
        folder,
    )
    assert trainer.finish()[0] == ""
    assert goodput_points(folder)


def test_a_trainer_that_made_itself_a_daemon_after_a_start_starts_its_uploads_again(folder: Path) -> None:
    trainer = Trainer(
        """
train((0, 20))
monitor.start_goodput_uploader()
first = os.getpid()
if os.fork():
    os._exit(0)
while os.getppid() == first:
    time.sleep(0.01)
monitor.start_goodput_uploader()
assert helper() is not None
train((20, 40))
monitor.stop_goodput_uploader()
""",
        folder,
    )
    assert trainer.finish() == ("", "")
    assert last_step(folder) == 38
