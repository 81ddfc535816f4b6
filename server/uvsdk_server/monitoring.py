"""Metrics and logs. Neither holds a user id, a key, an embedding or an update."""

from __future__ import annotations

import logging
import sys
import traceback
from dataclasses import dataclass, field
from pathlib import Path

import structlog
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from uvsdk.records.transfer import stays_here

Log = structlog.typing.FilteringBoundLogger


def logger(level: str) -> Log:
    """A logger that writes one JSON object a line to standard error; configures nothing globally."""
    log: Log = structlog.wrap_logger(
        structlog.PrintLogger(sys.stderr),
        processors=[
            structlog.contextvars.merge_contextvars,  # the id of the request at hand
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
    )
    return log


def where(error: BaseException) -> list[str]:
    """The last steps to ``error`` in the code, without its message, which may quote what must not be logged."""
    frames = traceback.extract_tb(error.__traceback__)[-6:]
    return [f"{Path(frame.filename).name}:{frame.lineno} {frame.name}" for frame in frames]


@dataclass(frozen=True, slots=True)
class Metrics:
    """What ``GET /metrics`` tells."""

    __reduce_ex__ = stays_here("it counts in this process; read GET /metrics")

    registry: CollectorRegistry = field(default_factory=CollectorRegistry)
    requests: Counter = field(init=False)
    uploads: Counter = field(init=False)
    upload_seconds: Histogram = field(init=False)
    rounds: Counter = field(init=False)
    aggregation_seconds: Histogram = field(init=False)
    current_round: Gauge = field(init=False)
    reports: Counter = field(init=False)
    evaluations: Counter = field(init=False)
    evaluation_seconds: Histogram = field(init=False)
    training_stopped: Gauge = field(init=False)
    training_step: Gauge = field(init=False)
    training_returns: Counter = field(init=False)
    class_cosine: Gauge = field(init=False)
    mean_delta_norm: Gauge = field(init=False)
    largest_step_ratio: Gauge = field(init=False)
    verifications: Counter = field(init=False)
    outside_verifications: Counter = field(init=False)
    verify_seconds: Histogram = field(init=False)
    refused_attempts: Counter = field(init=False)
    release: Gauge = field(init=False)
    verdicts: Counter = field(init=False)
    release_refusals: Counter = field(init=False)
    former_verifications: Counter = field(init=False)

    def __post_init__(self) -> None:
        registry = self.registry
        for name, metric in (
            ("requests", Counter("uvsdk_requests", "Answers by status.", ["method", "status"], registry=registry)),
            ("uploads", Counter("uvsdk_uploads", "Updates by outcome.", ["outcome"], registry=registry)),
            ("upload_seconds", Histogram("uvsdk_upload_seconds", "First byte to durable.", registry=registry)),
            ("rounds", Counter("uvsdk_rounds", "Closed rounds by outcome.", ["outcome"], registry=registry)),
            ("aggregation_seconds", Histogram("uvsdk_aggregation_seconds", "Sum and step.", registry=registry)),
            ("current_round", Gauge("uvsdk_current_round", "Id of the newest round.", registry=registry)),
            ("reports", Counter("uvsdk_reports", "Reports by outcome.", ["outcome"], registry=registry)),
            (
                "evaluations",
                Counter("uvsdk_evaluations", "Evaluations by what came of them.", ["outcome"], registry=registry),
            ),
            ("evaluation_seconds", Histogram("uvsdk_evaluation_seconds", "Sums and verdict.", registry=registry)),
            (
                "training_stopped",
                Gauge("uvsdk_training_stopped", "1 while training rests because it got worse.", registry=registry),
            ),
            (
                "training_step",
                Gauge(
                    "uvsdk_training_step",
                    "What the server's step is multiplied by: halved with every return to the best candidate.",
                    registry=registry,
                ),
            ),
            (
                "training_returns",
                Counter("uvsdk_training_returns", "Returns to the best candidate so far.", registry=registry),
            ),
            (
                "class_cosine",
                Gauge(
                    "uvsdk_class_vectors_mean_offdiagonal_cosine",
                    "Collapse monitor: near 1 when all class vectors have fallen onto one point; NaN without any.",
                    registry=registry,
                ),
            ),
            (
                "mean_delta_norm",
                Gauge(
                    "uvsdk_round_mean_delta_norm",
                    "L2 norm of the newest round's mean delta: falls as training settles.",
                    registry=registry,
                ),
            ),
            (
                "largest_step_ratio",
                Gauge(
                    "uvsdk_round_largest_step_ratio",
                    "How far the newest round moved a tensor of the trunk at most, as a part of its norm.",
                    registry=registry,
                ),
            ),
            ("verifications", Counter("uvsdk_verifications", "By outcome.", ["outcome"], registry=registry)),
            (
                "outside_verifications",
                Counter(
                    "uvsdk_outside_verifications",
                    "Of template or probe outside of what was calibrated, by outcome; refused where that is strict.",
                    ["outcome"],
                    registry=registry,
                ),
            ),
            ("verify_seconds", Histogram("uvsdk_verify_seconds", "Decode to decision.", registry=registry)),
            (
                "refused_attempts",
                Counter(
                    "uvsdk_refused_attempts",
                    "Probes not looked at after failures in a row, by whose failures and until when (later, reset).",
                    ["whose", "until"],
                    registry=registry,
                ),
            ),
            ("release", Gauge("uvsdk_release", "Number of the release that verifies.", registry=registry)),
            (
                "verdicts",
                Counter("uvsdk_release_verdicts", "What the gate said.", ["outcome"], registry=registry),
            ),
            (
                "release_refusals",
                Counter("uvsdk_release_refusals", "Devices that stay with another release.", registry=registry),
            ),
            (
                "former_verifications",
                Counter(
                    "uvsdk_former_release_verifications",
                    "Under a release before the one in force, for the template was of it.",
                    registry=registry,
                ),
            ),
        ):
            object.__setattr__(self, name, metric)
