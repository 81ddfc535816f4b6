"""Training settings by name, for an operator who need not understand them one by one.

``training.json`` names a recipe beside what it trains, and whatever else it says wins over the recipe:

>>> config = configured({"deployment": "clinic", "backbone": "ge2e", "algorithm": "fedaws", "recipe": "voice-head",
...                      "rounds": 10})
>>> config.train, config.optimiser, config.trust_ratio, config.rounds
('head', 'adam', 0.01, 10)

The name itself goes no further: what devices approve by its digest is the configuration that comes of it, so a recipe
that changes with a version of this library changes nothing in a deployment that runs. How each did over five seeds:
``examples/reproduce/recipes``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

from uvsdk.errors import SettingsError, UnknownNameError
from uvsdk.federation.messages import TrainingConfig

_NOTHING: Final[Mapping[str, object]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Recipe:
    """One way to train.

    Args:
        modality: what it is for, a name of :mod:`uvsdk.modality`.
        purpose: in words, for whom.
        settings: fields of :class:`uvsdk.federation.messages.TrainingConfig`.
        of_algorithm: algorithm -> settings of that algorithm.
    """

    modality: str
    purpose: str
    settings: Mapping[str, object]
    of_algorithm: Mapping[str, Mapping[str, object]] = field(default_factory=dict)


# The deltas of one small step lie far below FedOpt's 1e-3, which would turn adam into plain momentum; how far a tensor
# may move is bounded by the trust ratio instead. The step size falls over the second half, so that the end is calm.
# Evaluations every four rounds find a step that is too long while rounds are left to go on by a shorter one.
_ADAM = {
    "optimiser": "adam",
    "server_adaptivity": 1e-8,
    "batch_size": 4,
    "cohort_size": 10,
    "rounds": 40,
    "warmup_rounds": 4,
    "cooldown_rounds": 20,
    "evaluate_every": 4,
}
_NEAR = MappingProxyType({"fixed": {"initialisation": "centred_client_means"}})
"""A codebook drawn at random lies far from what an encoder gives: its gradients are some thirty times as long as those
towards everybody's own mean, and the first rounds pull all people together to its mean (SPEC 1.3)."""

RECIPES: Final[Mapping[str, Recipe]] = MappingProxyType(
    {
        "voice-head": Recipe(
            "voice",
            "a pretrained voice encoder on a channel it was not trained for: its last layer, 265 kB a round of GE2E, "
            "787 kB of CAM++",
            _ADAM | {"train": "head", "server_learning_rate": 2e-3, "trust_ratio": 1e-2},
            _NEAR,
        ),
        "voice-all": Recipe(
            "voice",
            "all of a recurrent voice encoder, where a hundred people or more train: 5.7 MB a round",
            _ADAM | {"train": "all", "server_learning_rate": 4e-4, "trust_ratio": 3e-4, "gradient_clip": 10.0},
            _NEAR,
        ),
        "voice-centred": Recipe(
            "voice",
            "an encoder that knows voices already, `campplus+centred`, on a channel or a language that it does not: a "
            "head that begins with the domain's mean taken off, in small steps, 148 kB a round",
            _ADAM | {"train": "head", "server_learning_rate": 5e-4, "trust_ratio": 1e-2},
            _NEAR,
        ),
        "letters": Recipe(
            "voice",
            "single words of half a second from few people: the last layer, slowly",
            _ADAM | {"train": "head", "server_learning_rate": 1e-3, "trust_ratio": 1e-2},
            _NEAR,
        ),
        "face-head": Recipe(
            "face",
            "a pretrained face encoder, for which little is left to learn: its last layer, in very small steps",
            _ADAM
            | {"train": "head", "server_learning_rate": 1e-4, "trust_ratio": 3e-4, "batch_size": 2, "rounds": 20}
            | {"warmup_rounds": 3, "cooldown_rounds": 10},
            _NEAR,
        ),
        "handwriting": Recipe(
            "handwriting",
            "the small network for digits, from random values",
            _ADAM
            | {"train": "all", "server_learning_rate": 2e-3, "trust_ratio": 0.1, "batch_size": 8, "cohort_size": 0}
            | {"rounds": 60, "warmup_rounds": 6, "cooldown_rounds": 30},
            _NEAR,
        ),
    }
)


def get(name: str) -> Recipe:
    """The recipe of that name. Raises :class:`uvsdk.errors.UnknownNameError`, which lists them."""
    if name not in RECIPES:
        raise UnknownNameError(f"no recipe {name!r}; there are {', '.join(RECIPES)}")
    return RECIPES[name]


def resolved(values: Mapping[str, object]) -> dict[str, Any]:
    """``values`` with the settings of the recipe that they name, which they win over; without one, as they are.

    Raises:
        UnknownNameError: no such recipe.
        SettingsError: the recipe is for another modality, or ``algorithm_settings`` are no settings by name.
    """
    named = dict(values)
    if "recipe" not in named:
        return named
    name = named.pop("recipe")
    recipe = get(name) if isinstance(name, str) else get(repr(name))
    modality = named.get("modality") or recipe.modality
    if modality != recipe.modality:
        raise SettingsError(f"the recipe {name!r} is for {recipe.modality}, the configuration says {modality!r}")
    own = named.get("algorithm_settings", _NOTHING)
    if not isinstance(own, Mapping):
        raise SettingsError(f"algorithm_settings are settings by name, got {own!r}")
    of_algorithm = {**recipe.of_algorithm.get(str(named.get("algorithm", "")), _NOTHING), **own}
    return {**recipe.settings, **named, "modality": modality, "algorithm_settings": of_algorithm}


def configured(values: Mapping[str, object]) -> TrainingConfig:
    """The configuration that settings by name, and maybe a recipe among them, come to.

    Raises:
        UnknownNameError, SettingsError: see :func:`resolved`; or a setting outside its range.
        WireError: unknown settings, or values of another type.
    """
    return TrainingConfig.from_json(json.dumps(resolved(values)))


def from_json(text: str | bytes) -> TrainingConfig:
    """:func:`configured` of a JSON object. Raises as that does, :class:`WireError` for anything else."""
    try:
        values = json.loads(text)
    except ValueError:
        values = None
    return configured(values) if isinstance(values, dict) else TrainingConfig.from_json(text)
