"""``POST /v1/verify``: a probe against a template that its device chose to leave here."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from uvsdk import modality
from uvsdk.arrays import Float32
from uvsdk.bundle import Bundle
from uvsdk.errors import SampleError
from uvsdk.modality import Capture, Limits
from uvsdk.scoring import Decision, Quality, Threshold
from uvsdk.template import Template
from uvsdk.verify import compare
from uvsdk_server.models import Models
from uvsdk_server.monitoring import Metrics
from uvsdk_server.people import People
from uvsdk_server.problems import Problem


@dataclass(frozen=True, slots=True)
class Probe:
    """What is compared: an embedding made elsewhere with ``model_version``, or a sample."""

    embedding: Float32 | None = None
    model_version: str | None = None
    sample: bytes | None = None


class Verifier:
    """Verification in a pool of threads, apart from the event loop."""

    def __init__(
        self, models: Models, people: People, metrics: Metrics, *, threads: int, limits: Limits, default_fmr: float
    ) -> None:
        self._models = models
        self._people = people
        self._metrics = metrics
        self._capture = Capture(limits=limits)
        self._default_fmr = default_fmr
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="verify")

    async def verify(self, user: str, probe: Probe, fmr: float | None) -> Decision:
        """Decide at the false match rate ``fmr``, or the default one.

        Raises:
            Problem: 404 unknown user; 409 outdated template, uncalibrated or other model.
            ThresholdError: the calibration cannot support that rate.
            SampleError: the probe cannot be used.
        """
        bundle = self._models.current
        template = Template(
            embedding=await self._people.template(user, bundle.version),
            model_version=bundle.version,
            modality=bundle.manifest.modality,
            samples=1,
            threshold=None,
        )
        threshold = self._threshold(bundle, fmr)
        start = time.perf_counter()
        decision = await asyncio.get_running_loop().run_in_executor(
            self._pool, self._decide, bundle, template, threshold, probe
        )
        self._metrics.verify_seconds.observe(time.perf_counter() - start)
        self._metrics.verifications.labels("accepted" if decision.accepted else "rejected").inc()
        return decision

    def close(self) -> None:
        """Finish what is running and stop the threads."""
        self._pool.shutdown()

    def _threshold(self, bundle: Bundle, fmr: float | None) -> Threshold:
        if bundle.calibration is None:
            raise Problem(
                409, "uncalibrated", "the current model has no impostor scores yet; the operator must calibrate it"
            )
        return bundle.calibration.threshold(fmr or self._default_fmr)

    def _decide(self, bundle: Bundle, template: Template, threshold: Threshold, probe: Probe) -> Decision:
        quality = Quality()
        if probe.embedding is not None:
            if probe.model_version != bundle.version:
                raise Problem(409, "model-mismatch", "the embedding was made with another model than the current one")
            embedding = probe.embedding
        elif probe.sample is not None:
            reader = modality.get(bundle.manifest.modality)
            prepared = reader.prepare(probe.sample, bundle, capture=self._capture)
            quality = prepared.quality
            embedding = bundle.embedding(reader.views(prepared.features, bundle.manifest.preprocessing))
        else:
            raise SampleError("neither an embedding nor a sample was sent; send one of them")
        # More digits than float32 carries would only help someone climb the score.
        score = float(np.float32(compare(embedding, template)))
        return Decision(score, threshold, bundle.version, quality)
