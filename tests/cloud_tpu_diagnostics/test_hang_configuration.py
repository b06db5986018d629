from __future__ import annotations

import json
from typing import Any

import pytest
from cloud_tpu_diagnostics.configuration.hang_configuration import HangConfig, checked
from cloud_tpu_diagnostics.exceptions import ConfigurationError


def test_hang_detection_is_off_by_default() -> None:
    assert HangConfig().enabled is False
    assert HangConfig().abort is False
    assert checked(HangConfig()) == HangConfig()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"enabled": 1}, "enabled is 1; give True or False"),
        ({"abort": "no"}, "abort is 'no'; give True or False"),
        ({"safety_factor": 0.5}, "safety_factor is 0.5; give a number of at least 1"),
        ({"safety_factor": float("nan")}, "safety_factor is nan"),
        ({"safety_factor": float("inf")}, "safety_factor is inf"),
        ({"step_floor_seconds": 0}, "step_floor_seconds is 0; give a number of seconds of at least 5"),
        ({"step_floor_seconds": "30"}, "step_floor_seconds is '30'"),
        ({"startup_floor_seconds": -1}, "startup_floor_seconds is -1"),
        ({"pause_floor_seconds": True}, "pause_floor_seconds is True"),
        ({"snapshots": 2.5}, "snapshots is 2.5; give a whole number, 0 or more"),
        ({"snapshots": -1}, "snapshots is -1"),
        ({"snapshot_interval_seconds": None}, "snapshot_interval_seconds is None; give seconds, 0 or more"),
        ({"on_hang": "page me"}, "on_hang is 'page me'; give a function that takes the verdict"),
    ],
)
def test_a_wrong_value_raises(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        checked(HangConfig(**values))
    assert str(caught.value).startswith(message)


def test_another_process_gets_all_but_the_callback() -> None:
    config = HangConfig(enabled=True, safety_factor=2, snapshots=0, abort=True, on_hang=print)
    sent = HangConfig(**json.loads(json.dumps(config.to_json())))
    assert sent.on_hang is None
    sent.on_hang = print
    assert sent == config
