"""The rows of the table: method, what distinguishes the row, and the settings, chosen on the validation part."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from torch import nn

from examples.reproduce.fedalc import trunk
from uvsdk.federation.messages import TrainingConfig
from uvsdk.records.codec import Scalar

SEEDS = (0, 1, 2)

# The local rate only scales the deltas, which Adam takes out again; times vector_rate it is the class vector's own.
_LOCAL_RATE = 0.1
_OWN_RATE = 0.1


@dataclass(frozen=True, slots=True)
class Plan:
    """One row.

    Args:
        method: registry name.
        setting: what distinguishes it from other rows of the method.
        settings: of the algorithm.
        trunk: (number of words) -> trunk.
        training: fields of :class:`TrainingConfig` that differ from :func:`config`'s.
        fraction: of the instances, that a round uses.
        seeds: seeds it is run with.
    """

    method: str
    setting: str = ""
    settings: Mapping[str, Scalar] = field(default_factory=dict)
    trunk: Callable[[int], nn.Module] = trunk.Residual
    training: Mapping[str, Scalar] = field(default_factory=dict)
    fraction: float = 0.125
    seeds: tuple[int, ...] = SEEDS


def config(plan: Plan, seed: int) -> TrainingConfig:
    """One local step a round, deltas weighted by their samples, Adam on the server."""
    common = TrainingConfig(
        deployment="bibtex",
        modality="tensors",
        backbone="custom",
        algorithm=plan.method,
        algorithm_settings=dict(plan.settings),
        local_steps=1,
        learning_rate=_LOCAL_RATE,
        weighting="samples",
        clipping="off",
        optimiser="adam",
        server_learning_rate=2e-3,
        server_adaptivity=1e-8,
        cooldown_rounds=150,
        rounds=300,
        seed=seed,
    )
    return replace(common, **plan.training)  # type: ignore[arg-type]


_OWN: dict[str, Scalar] = {"initialisation": "random", "vector_rate": _OWN_RATE}
_SPREAD: dict[str, Scalar] = {**_OWN, "margin": 1.0}


_ALC = Plan("fedalc", "sigma", _SPREAD)
_AWS = Plan("fedaws", "hinge", _SPREAD)

# What S2 prints, where it prints anything: lambda 10, k 5, both rates, uniform weights, plain averaging, 300 rounds.
_LITERAL = Plan(
    "fedalc",
    "literal",
    {
        "initialisation": "random",
        "weights": "eq11",
        "neighbours": 5,
        "unit_mean": False,
        "step": 10 * 1e-4,
        "smallest_shared": 1,
    },
    trunk.literal,
    {"weighting": "uniform", "optimiser": "sgd", "server_learning_rate": 1.0, "rounds": 300, "cooldown_rounds": 0},
)


def _swept(plan: Plan, step: float) -> Plan:
    """lambda x eta_s other than 0.1, one seed."""
    return replace(plan, setting=f"{plan.setting} {step:g}", settings={**plan.settings, "step": step}, seeds=(0,))


PLANS = (
    _ALC,
    _AWS,
    Plan("fedaws", "topk_neg_sq", {**_OWN, "mode": "topk_neg_sq", "neighbours": 5}),
    Plan("fedalc", "gamma", {**_SPREAD, "weights": "gamma"}),
    Plan("fedalc", "eq11", {**_OWN, "weights": "eq11", "neighbours": 5}),
    Plan("fedalc_fixed", "", {"margin": 1.0}),
    Plan("fixed"),
    Plan("softmax", "", {"samples_cap": 1000}),
    Plan("positive_only", "", {"initialisation": "random", "vector_rate": _OWN_RATE}),
    _LITERAL,
    replace(_LITERAL, method="positive_only", settings={"initialisation": "random"}),
    replace(_ALC, setting="sigma, paper's trunk", trunk=trunk.papers),
    *(_swept(plan, step) for plan in (_ALC, _AWS) for step in (0.001, 0.01, 1.0)),
)


def find(method: str, setting: str) -> Plan:
    """The row of that name. Raises :class:`KeyError`."""
    return {(plan.method, plan.setting): plan for plan in PLANS}[method, setting]
