"""Processes of a job agree through the real coordination service of JAX, and none waits for one that is gone."""

from __future__ import annotations

import os

import pytest
from ml_diagnostics_common import agreement

from ..google_cloud_mldiagnostics import run_programs as programs
from ..waiting import free_port

CONNECTED = """
import jax
from ml_diagnostics_common.agreement import agree, jax_processes, publish, subscribe
jax.distributed.initialize("127.0.0.1:{port}", num_processes=1, process_id=0)
"""


def run(program: str, **arguments: str) -> programs.Ended:
    return programs.run(CONNECTED.format(port=free_port()) + program, JAX_PLATFORMS="cpu", **arguments)


def test_without_jax_distributed_each_process_uses_its_own_value() -> None:
    assert agreement.agree("key", "mine") == "mine"
    agreement.publish("key", "mine")
    agreement.subscribe("key", lambda _: pytest.fail("no process publishes"))
    assert agreement.jax_processes() is None


def test_the_first_value_is_used_by_all_and_no_process_waits() -> None:
    ended = run("""
print(agree("a", "first"), agree("a", "second"), agree("b", "third"), jax_processes())
""")
    assert ended.output == "first first third (0, 1)\n", ended.errors
    assert "it continues with" not in ended.errors  # Logged after a timeout.


def test_a_value_that_one_process_publishes_is_received_by_the_others() -> None:
    ended = run("""
received = []
subscribe("a", received.append)
time.sleep(0.1)
publish("a", "1")
while not received:
    time.sleep(0.01)
publish("a", "2")
from ml_diagnostics_common import agreement
client = agreement._coordination_client()
while client.blocking_key_value_get(agreement._NAMESPACE + "a", 20_000) != "2":
    time.sleep(0.01)
subscribe("a", received.append)
while len(received) < 2:
    time.sleep(0.01)
print(received)
""")
    assert ended.output == "['1', '2']\n", ended.errors


def test_a_coordinator_that_does_not_answer_costs_a_bounded_time_and_one_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Silent:
        def key_value_set(self, *_: object, **__: object) -> None:
            os.read(reading, 1)

        def blocking_key_value_get(self, *_: object) -> str:
            return "too late"

    reading, writing = os.pipe()
    monkeypatch.setattr(agreement, "_coordination_client", Silent)
    assert agreement.agree("key", "mine", timeout_seconds=0.05) == "mine"
    assert "it continues with mine" in caplog.text
    os.write(writing, b"x")


def test_a_process_that_waits_for_the_coordinator_is_not_ended_by_our_requests() -> None:
    """jaxlib ends a process that asks before it is connected, and JAX shows the client before that."""
    program = """
import jax
from ml_diagnostics_common.agreement import jax_processes, publish, subscribe

def ask():
    while not jax_processes():
        publish("a", "1")
        subscribe("a", print)
        time.sleep(0.01)

threading.Thread(target=ask, daemon=True).start()
index = int(os.environ["INDEX"])
time.sleep(0.0 if index else 1.0)
jax.distributed.initialize("127.0.0.1:{port}", num_processes=2, process_id=index)
assert jax_processes() == (index, 2)
jax.distributed.shutdown()
""".replace("{port}", str(free_port()))
    jobs = [programs.start(program, JAX_PLATFORMS="cpu", INDEX=str(index)) for index in range(2)]
    ended = [programs.end(job, timeout_seconds=60) for job in jobs]
    assert [each.code for each in ended] == [0, 0], [each.errors for each in ended]


@pytest.mark.skipif("sys.platform != 'linux'", reason="only Linux shows handlers in C")
def test_the_handler_that_jax_has_for_preemptions_is_left_alone() -> None:
    ended = run("""
start_run()
os.kill(os.getpid(), signal.SIGTERM)
time.sleep(0.2)
print("goes on", flush=True)
jax.distributed.shutdown()
""")
    assert (ended.code, ended.output) == (0, "goes on\n"), ended.errors
    assert programs.kept_run()["runPhase"] == "COMPLETED"
