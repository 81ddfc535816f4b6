"""What is trained: every line of the table and of the sweeps, with settings that the validation images chose."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from uvsdk.federation.messages import TrainingConfig
from uvsdk.records.codec import Scalar
from uvsdk.simulation.references import deep_svdd

SEEDS = (0, 1, 2)

LOCAL = "deep_svdd"

# The paper: 10,000 rounds of one step of 16 images on each of 10 devices, SGD 0.1. Fewer rounds, and Adam on the
# averaged delta with a rate that falls to 0, reach the same place in a thirtieth of the passes.
_FEDERATED: Mapping[str, Scalar] = {
    "rounds": 300,
    "batch_size": 16,
    "local_steps": 1,
    "learning_rate": 0.1,
    "optimiser": "adam",
    "server_learning_rate": 5e-3,
    "server_adaptivity": 1e-8,
    "warmup_rounds": 25,
    "cooldown_rounds": 150,
    # All devices are honest: weighted as when the table was made, and never clipped.
    "weighting": "capped",
    "clipping": "off",
}

_MEASURED: Mapping[str, Scalar] = {"centre_samples": 200, "radius_samples": 200, "publish_every": 10}
"""Centre and radius of a digit's 6,000 images are measured on 200 of them, the radius every 10 rounds."""

_BALL: Mapping[str, Scalar] = {**_MEASURED, "initialisation": "random", "centre_rate": 0.03}
"""Among ten people centres start at random and follow slowly (README)."""

PRINTED: Mapping[str, Scalar] = {
    "negative_reduction": "sum",
    "positive_loss": "linear",
    "pull_radius": 0.0,
    "centre": "fixed",
    "margin_max": 1.2,
    "cap_cosine": -1.0,
}
"""``Settings.paper()``: the loss as printed, on unit embeddings and with margins clamped to 1.2, which it is not."""


@dataclass(frozen=True, slots=True)
class Plan:
    """One line of the table.

    Args:
        method: registry name, or the name of the reference.
        setting: what distinguishes this line from the others of the method; empty for the main one.
        config: fields of ``TrainingConfig`` (of ``deep_svdd.Settings``) that differ from those all share.
        algorithm: fields of the method's ``Settings`` that differ from its defaults.
        code: c of FedUV's head; 0 for none.
        seeds: of its runs.
        paper: AUROC in the paper's Table 2, in percent; 0 for none.
    """

    method: str
    setting: str = ""
    config: Mapping[str, Scalar] = field(default_factory=dict)
    algorithm: Mapping[str, Scalar] = field(default_factory=dict)
    code: int = 0
    seeds: tuple[int, ...] = SEEDS
    paper: float = 0.0

    def training(self, seed: int) -> TrainingConfig:
        """The configuration of one run."""
        return TrainingConfig(
            deployment="digits",
            modality="tensors",
            backbone="lenet",
            algorithm=self.method,
            algorithm_settings=dict(self.algorithm),
            **{"seed": seed, **_FEDERATED, **self.config},  # type: ignore[arg-type]
        )

    def local(self, seed: int) -> deep_svdd.Settings:
        """The settings of one device of the reference."""
        return replace(deep_svdd.Settings(), seed=seed, **self.config)  # type: ignore[arg-type]

    def words(self) -> str:
        """What differs from the plan all share, in one cell of tuning.csv."""
        parts = [f"{name}={value}" for name, value in self.config.items()]
        return " ".join([*parts, *(f"algorithm.{name}={value}" for name, value in self.algorithm.items())])


def _metric(setting: str, *, seeds: tuple[int, ...] = SEEDS, paper: float = 0.0, **algorithm: Scalar) -> Plan:
    return Plan("fedmetric", setting, algorithm={**_BALL, **algorithm}, seeds=seeds, paper=paper)


def _printed(setting: str, *, paper: float = 0.0, **algorithm: Scalar) -> Plan:
    """The loss as printed on unit embeddings, margins at most 1.2: ``Settings.paper()``."""
    setting = f"{setting} as printed on unit embeddings and margins below 1.2"
    return Plan("fedmetric", setting, algorithm={**_MEASURED, **PRINTED, **algorithm}, paper=paper)


# The value that the sweeps share with the table, lambda = 0.3 and s = 3, is the table's run.
_SWEEP = tuple(
    _metric(f"{sharing} lambda={weight}", seeds=(0,), negative_weight=weight, sharing=sharing)
    for sharing in ("proxy", "true")
    for weight in (0.1, 0.5, 0.7, 1.0)
) + tuple(_metric(f"proxy s={s}", seeds=(0,), offset_factor=s) for s in (1.1, 1.5, 2.0, 5.0))

PLANS = (
    Plan(LOCAL, config={"steps": 150, "batch_size": 100, "learning_rate": 1e-4}, paper=94.8),
    Plan("positive_only", algorithm={"initialisation": "random"}),
    _metric("pos", sharing="none", paper=99.4),
    _metric("proxy", paper=99.6),
    _metric("true", sharing="true", paper=99.6),
    _printed("pos", sharing="none", paper=99.4),
    _printed("proxy", paper=99.6),
    _printed("true", sharing="true", paper=99.6),
    Plan("fedaws", algorithm={"initialisation": "random"}, paper=99.6),
    Plan("feduv", algorithm={"least_secret_bits": 32}, code=127, paper=99.7),
    *_SWEEP,
)


def find(method: str, setting: str) -> Plan:
    """The plan of that name; a stranger ends the program with the list of those there are."""
    for plan in PLANS:
        if (plan.method, plan.setting) == (method, setting):
            return plan
    there = ", ".join(f"{plan.method}:{plan.setting}" for plan in PLANS)
    raise SystemExit(f"no line {method!r} with setting {setting!r}; there are {there}")
