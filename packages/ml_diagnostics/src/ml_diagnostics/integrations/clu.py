"""CLU, the loops of Flax's examples: a metric writer that records scalars."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ml_diagnostics import current
from ml_diagnostics.integrations._training import record_configs, requires

with requires("clu"):
    from clu.metric_writers import MetricWriter

__all__ = ["DiagnosticsWriter"]


class DiagnosticsWriter(MetricWriter):
    """Record scalars as metrics, and hyperparameters as configs, in the job of the process.

        writer = MultiWriter([create_default_writer(folder), DiagnosticsWriter()])

    A scalar on a device is recorded when it is ready. Other values, such as images, are not recorded.
    """

    def write_scalars(self, step: int, scalars: Mapping[str, Any]) -> None:
        current().log(scalars, step=step)

    def write_hparams(self, hparams: Mapping[str, Any]) -> None:
        record_configs(hparams)

    def _record_nothing(self, *args: Any, **kwargs: Any) -> None:
        """Ignore a value of another kind."""

    write_summaries = write_images = write_videos = write_audios = write_texts = _record_nothing
    write_histograms = write_pointcloud = flush = close = _record_nothing
