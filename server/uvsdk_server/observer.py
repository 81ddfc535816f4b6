"""Where a watcher is told how far the server has come; the tests kill the process at each of these points."""

from __future__ import annotations

from typing import Final, Protocol

UPLOAD_STORED: Final = "upload-stored"
UPLOAD_RECORDED: Final = "upload-recorded"
UPLOAD_ANSWERED: Final = "upload-answered"
AGGREGATION_STARTED: Final = "aggregation-started"
RESULT_STORED: Final = "result-stored"
ROUND_COMMITTED: Final = "round-committed"

POINTS: Final = (
    UPLOAD_STORED,
    UPLOAD_RECORDED,
    UPLOAD_ANSWERED,
    AGGREGATION_STARTED,
    RESULT_STORED,
    ROUND_COMMITTED,
)
"""In the order in which a round passes them."""


REPORT_STORED: Final = "report-stored"
REPORT_RECORDED: Final = "report-recorded"
REPORT_ANSWERED: Final = "report-answered"
EVALUATION_COMPLETE: Final = "evaluation-complete"
EVALUATION_APPLIED: Final = "evaluation-applied"
EVALUATION_POINTS: Final = (
    REPORT_STORED,
    REPORT_RECORDED,
    REPORT_ANSWERED,
    EVALUATION_COMPLETE,
    EVALUATION_APPLIED,
)
"""In the order in which an evaluation passes them."""

TRAINING_RETURNED: Final = "training-returned"
"""After the transaction in which training went back to the best candidate so far."""

DELETION_RECORDED: Final = "deletion-recorded"
DELETION_FILES_GONE: Final = "deletion-files-gone"
DELETION_POINTS: Final = (DELETION_RECORDED, DELETION_FILES_GONE)
"""In the order in which the deletion of a user passes them."""


RELEASE_STORED: Final = "release-stored"
RELEASE_COMMITTED: Final = "release-committed"
RELEASE_POINTS: Final = (RELEASE_STORED, RELEASE_COMMITTED)
"""In the order in which a release passes them."""


class Observer(Protocol):
    """Told of every point in :data:`POINTS`, :data:`DELETION_POINTS` and :data:`RELEASE_POINTS`.

    The server waits for it to return.
    """

    async def reached(self, point: str) -> None:
        """The server is at ``point``."""


class Unobserved:
    """The observer of a server that nobody watches."""

    async def reached(self, point: str) -> None:
        """Do nothing."""
