"""What is trained for the table: every method with the settings that the validation speakers chose (tuning.csv)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from uvsdk.federation.messages import TrainingConfig
from uvsdk.records.codec import Scalar
from uvsdk.simulation.references import central_softmax

SEEDS = (0, 1, 2)

CENTRAL = "central_softmax"

_CENTRAL = central_softmax.Settings(
    steps=600, batch_size=160, learning_rate=1e-3, warmup_steps=60, cooldown_steps=300, scale=12.0
)

WARM_START = replace(_CENTRAL, steps=300, learning_rate=2e-3, warmup_steps=30, cooldown_steps=150, scale=8.0)
"""How the public warm start is trained: the central reference on the 30 public speakers alone."""

# 600 rounds of 40 devices, 4 utterances each, one step: 96,000 training views, as many as the central reference sees.
# The deltas of one step are tiny, so tau of the server's Adam is too: each coordinate then moves at the full rate.
_COLD: Mapping[str, Scalar] = {
    "rounds": 600,
    "cohort_size": 40,
    "batch_size": 4,
    "local_steps": 1,
    "learning_rate": 0.1,
    "optimiser": "adam",
    "server_learning_rate": 2e-3,
    "server_adaptivity": 1e-8,
    "warmup_rounds": 60,
    "cooldown_rounds": 300,
    # All devices are honest: weighted as the papers have it, and never clipped.
    "weighting": "samples",
    "clipping": "off",
}


# A quarter of the rounds, each of four local steps on fresh views: as many views as above.
_FEW: Mapping[str, Scalar] = {
    "rounds": 150,
    "local_steps": 4,
    "learning_rate": 0.05,
    "server_learning_rate": 4e-3,
    "warmup_rounds": 10,
    "cooldown_rounds": 75,
}


_TUNED: Mapping[str, Scalar] = {"server_learning_rate": 1e-3}
_PUSHED: Mapping[str, Scalar] = {"step": 1.0, "vector_rate": 3.0}
_HALF: Mapping[str, Scalar] = {"rounds": 300, "warmup_rounds": 30, "cooldown_rounds": 150}


@dataclass(frozen=True, slots=True)
class Plan:
    """One line of the table.

    Args:
        method: registry name.
        setting: what distinguishes this line from the others of the method; empty for the main one.
        config: fields of ``TrainingConfig`` that differ from those all share.
        algorithm: fields of the method's ``Settings`` that differ from its defaults.
        code: c of FedUV's head; 0 for none.
        trunk: ``statistics`` or ``tdnn``.
        warm: whether the trunk starts from the central reference trained on the 30 public speakers.
    """

    method: str
    setting: str = ""
    config: Mapping[str, Scalar] = field(default_factory=dict)
    algorithm: Mapping[str, Scalar] = field(default_factory=dict)
    code: int = 0
    trunk: str = "statistics"
    warm: bool = False

    def training(self, seed: int) -> TrainingConfig:
        """The configuration of one run."""
        return TrainingConfig(
            deployment="speakers",
            modality="tensors",
            backbone=self.trunk,
            algorithm=self.method,
            algorithm_settings=dict(self.algorithm),
            **{"seed": seed, **_COLD, **self.config},  # type: ignore[arg-type]
        )

    def central(self, seed: int) -> central_softmax.Settings:
        """The settings of one run of the central reference."""
        return replace(_CENTRAL, seed=seed, **self.config)  # type: ignore[arg-type]


PLANS = (
    Plan(CENTRAL),
    Plan(CENTRAL, "rate 2e-3", config={"learning_rate": 2e-3}),
    Plan(CENTRAL, "300 steps", config={"steps": 300, "learning_rate": 2e-3, "warmup_steps": 30, "cooldown_steps": 150}),
    Plan(CENTRAL, "tdnn", config={"scale": 8.0, "learning_rate": 2e-3}, trunk="tdnn"),
    Plan("fedaws", config=_TUNED, algorithm=_PUSHED),
    Plan("fedaws", "300 rounds", config=_HALF, algorithm=_PUSHED),
    Plan("fedaws", "300 rounds, rate 1e-3", config={**_HALF, **_TUNED}, algorithm=_PUSHED),
    Plan("fedaws", "rate 2e-3, step 0.1"),
    Plan("fedaws", "tdnn", trunk="tdnn"),
    Plan("fedaws", "150 rounds, 4 steps, warm start", config=_FEW, warm=True),
    Plan("fedalc"),
    Plan("fedalc_fixed"),
    Plan("fixed"),
    Plan("positive_only", algorithm={"initialisation": "random"}),
    Plan("softmax", algorithm={"samples_cap": 1000}),
    Plan("fedss", algorithm={"pool": "users", "anchors": 0, "negatives": 26, "samples_cap": 1000}),
    Plan("feduv", code=255),
    Plan(
        "feduv",
        "300 rounds, squared, warm start",
        config={"rounds": 300, "cooldown_rounds": 200},
        algorithm={"loss": "squared"},
        code=255,
        warm=True,
    ),
    Plan("fedmetric", algorithm={"centre_samples": 5, "radius_samples": 5, "publish_every": 3}),
)


def find(method: str, setting: str) -> Plan:
    """The plan of that name; a stranger ends the program with the list of those there are."""
    for plan in PLANS:
        if (plan.method, plan.setting) == (method, setting):
            return plan
    there = ", ".join(f"{plan.method}:{plan.setting}" for plan in PLANS)
    raise SystemExit(f"no line {method!r} with setting {setting!r}; there are {there}")
