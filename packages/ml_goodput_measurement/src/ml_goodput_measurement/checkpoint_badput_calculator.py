"""Statistics of checkpoints, under the name that the public package has for their module.

python -m ml_goodput_measurement.checkpoint_badput_calculator --job_name run7 --logger_name goodput_run7
"""

from ml_goodput_measurement._compat.checkpoint_badput_calculator import (
    OPERATION_TYPE_EMERGENCY_RESTORE,
    OPERATION_TYPE_LOCAL,
    OPERATION_TYPE_PERSISTENT,
    OPERATION_TYPE_PERSISTENT_AND_LOCAL,
    OPERATION_TYPE_RESTORE,
    OPERATION_TYPE_SAVE,
    CheckpointBadputCalculator,
    CheckpointLoggerOptions,
    RestoreCheckpointManagerVerticalStepStats,
    RestoreProcessedStep,
    SaveCheckpointManagerVerticalStepStats,
    SaveProcessedStep,
    main,
)

__all__ = [
    "OPERATION_TYPE_EMERGENCY_RESTORE",
    "OPERATION_TYPE_LOCAL",
    "OPERATION_TYPE_PERSISTENT",
    "OPERATION_TYPE_PERSISTENT_AND_LOCAL",
    "OPERATION_TYPE_RESTORE",
    "OPERATION_TYPE_SAVE",
    "CheckpointBadputCalculator",
    "CheckpointLoggerOptions",
    "RestoreCheckpointManagerVerticalStepStats",
    "RestoreProcessedStep",
    "SaveCheckpointManagerVerticalStepStats",
    "SaveProcessedStep",
]

if __name__ == "__main__":
    raise SystemExit(main())
