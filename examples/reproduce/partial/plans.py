"""What is trained, by which settings; chosen on the validation people with seed 0 (``tuning.csv``)."""

from __future__ import annotations

from dataclasses import dataclass, replace

from uvsdk.federation.messages import TrainingConfig


@dataclass(frozen=True, slots=True)
class Plan:
    """One way to train.

    Args:
        kind: of :data:`examples.reproduce.partial.corpus.PREPROCESSING`.
        backbone: registry name.
        train: what of it is trained.
        algorithm: registry name.
        server_learning_rate: of the server's Adam.
        rounds: of ``cohort`` devices with ``batch`` samples each and one local step.
    """

    kind: str
    backbone: str
    train: str
    algorithm: str
    server_learning_rate: float
    rounds: int = 40
    cohort: int = 10
    batch: int = 4

    @property
    def modality(self) -> str:
        """Of the backbone."""
        return "face" if self.backbone.startswith("faceapi") else "voice"

    @property
    def setting(self) -> str:
        """What distinguishes it in a table."""
        size = self.backbone.partition("+")[2]
        return f"{self.kind}, {self.train}" + (f" of {size}" if size else "")

    def config(self, seed: int) -> TrainingConfig:
        """The configuration of a deployment that trains so."""
        return TrainingConfig(
            deployment="partial",
            modality=self.modality,
            backbone=self.backbone,
            algorithm=self.algorithm,
            train=self.train,
            batch_size=self.batch,
            weighting="samples",
            clipping="off",
            optimiser="adam",
            server_learning_rate=self.server_learning_rate,
            # The deltas of one small step lie far below FedOpt's 1e-3, which would turn adam into plain momentum.
            server_adaptivity=1e-8,
            warmup_rounds=self.rounds // 10,
            cooldown_rounds=self.rounds // 2,
            rounds=self.rounds,
            cohort_size=self.cohort,
            seed=seed,
        )


_LETTERS = Plan("letters", "ge2e", "head", "fedaws", 1e-3)
_TELEPHONE = Plan("telephone", "ge2e", "head", "fedaws", 4e-3, cohort=20, batch=2)
_FACES = Plan("small faces", "faceapi-resnet", "head", "fedaws", 1e-3, cohort=12, batch=2)

PLANS = (
    _LETTERS,
    replace(_LETTERS, train="block", server_learning_rate=1e-4),
    replace(_LETTERS, train="all", server_learning_rate=1e-4),
    _TELEPHONE,
    replace(_TELEPHONE, backbone="ge2e+64"),
    replace(_TELEPHONE, train="block", server_learning_rate=4e-4),
    replace(_TELEPHONE, train="all", server_learning_rate=4e-4),
    _FACES,
    replace(_FACES, train="block", server_learning_rate=2e-4),
    replace(_FACES, train="all", server_learning_rate=1e-4),
)
