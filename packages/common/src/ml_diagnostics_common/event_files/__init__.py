"""TensorBoard's event files: written in whole batches, each point once over restarts, and uploaded whole to a bucket.

TensorFlow's writer, tensorboardX's and PyTorch's are not used: see the decisions 0003 and 0030.

Files for gs:// are written to a private folder first. Files that cannot be uploaded stay there, for the next try or the
next process on this host.
"""

from __future__ import annotations

from ml_diagnostics_common.event_files._event_file import EventFile, event_file_names
from ml_diagnostics_common.event_files._event_log import EventLog, SavedLog, points_folder
from ml_diagnostics_common.event_files._records import STEPS, Scalar, TaggedValue, event_record, marker_record
from ml_diagnostics_common.event_files._uploader import Uploader, UploadLimits

__all__ = [
    "STEPS",
    "EventFile",
    "EventLog",
    "SavedLog",
    "Scalar",
    "TaggedValue",
    "UploadLimits",
    "Uploader",
    "event_file_names",
    "event_record",
    "marker_record",
    "points_folder",
]
