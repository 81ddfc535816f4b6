"""How far trainings of other seeds end apart: the same rounds in one process, without server and devices."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from groups import Groups
from laboratory import Laboratory, Model, Sides

from uvsdk.arrays import Float32
from uvsdk.bundle import Bundle
from uvsdk.evaluation import metrics
from uvsdk.federation.messages import TrainingConfig

if TYPE_CHECKING:
    from torch import Tensor, nn

    from uvsdk.bundle.frozen import FrozenViews


@dataclass(frozen=True, slots=True)
class Spread:
    """Trains the people of ``groups`` who train, from ``start``, or from where centring has moved it (``begun``).

    Where a part of the model is trained, the rest is asked once of every sample, for all trainings together.
    """

    start: Bundle
    begun: Bundle
    laboratory: Laboratory
    groups: Groups
    frozen: dict[Path, FrozenViews]

    @classmethod
    def of(cls, start: Bundle, laboratory: Laboratory, groups: Groups) -> Spread:
        """Asks the frozen part now."""
        from uvsdk.bundle.frozen import CROPS, FrozenPart

        found: dict[Path, FrozenViews] = {}
        if start.manifest.train != "all":
            part = FrozenPart(start)
            taught = {path for paths in laboratory.enrolment(groups.trained).values() for path in paths}
            for path in laboratory.usable():
                found[path] = part(laboratory.features(path), crops=CROPS if path in taught else 0)
        return cls(start, laboratory.centred(start, groups) or start, laboratory, groups, found)

    def trained_errors(self, config: TrainingConfig) -> Sides[float]:
        """The equal error rates of samples that nobody trained on, after ``config``'s rounds."""
        # Imported here, for the demonstration must not hold torch's threads while it starts other processes.
        from uvsdk.simulation import Frozen, Prepared, Simulation
        from uvsdk.training import backbones
        from uvsdk.training.backbones import Partial

        backbone = backbones.get(self.start.manifest.backbone, config.train).load()
        backbones.unflatten(backbone, self.begun.theta)
        module = backbone.rest if isinstance(backbone, Partial) else backbone
        taught = self.laboratory.enrolment(self.groups.trained)
        if self.frozen:
            people: Frozen | Prepared = Frozen(
                {name: tuple(self.frozen[path] for path in paths) for name, paths in taught.items()}
            )
        else:
            features = {name: [self.laboratory.features(path) for path in paths] for name, paths in taught.items()}
            people = Prepared(features, self.start.manifest)
        simulation = Simulation(config, module, people)
        simulation.run()
        trained = self.start.with_theta(simulation.theta)
        model = Model(trained.version, self._embeddings(module, simulation.theta)) if self.frozen else trained
        outcomes = self.laboratory.outcomes(model, self.groups)
        return outcomes.each(lambda outcome: metrics.eer(outcome.trials.curve()))

    def _embeddings(self, module: nn.Module, theta: Float32) -> Callable[[], dict[Path, Float32]]:
        def embed() -> dict[Path, Float32]:
            from uvsdk.training import backbones
            from uvsdk.training.loop import FrozenSamples

            backbones.unflatten(module, theta)
            module.eval()
            rows: Tensor = FrozenSamples(tuple(self.frozen.values())).embed(module, None)
            return dict(zip(self.frozen, rows.numpy(), strict=True))

        return embed
