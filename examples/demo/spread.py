"""How far trainings of other seeds end apart: the same rounds in one process, without server and devices."""

from __future__ import annotations

from laboratory import Laboratory

from uvsdk.bundle import Bundle
from uvsdk.evaluation import metrics
from uvsdk.federation import roles
from uvsdk.federation.messages import TrainingConfig


def trained_error(config: TrainingConfig, start: Bundle, laboratory: Laboratory) -> float:
    """The equal error rate of everybody's samples that nobody trained on, after ``config``'s rounds from ``start``.

    Who only evaluates is drawn as a server draws it, of names in place of hashed ids.
    """
    # Imported here, for the demonstration must not hold torch's threads while it starts other processes.
    from uvsdk.simulation import Frozen, Prepared, Simulation
    from uvsdk.training import backbones
    from uvsdk.training.backbones import Partial

    features = laboratory.enrolment_features()
    evaluate = roles.split(sorted(features), seed=config.seed or 0, config=config)
    taught = {name: rows for name, rows in features.items() if name not in evaluate}
    backbone = backbones.get(start.manifest.backbone, config.train).load()
    backbones.unflatten(backbone, start.theta)
    module = backbone.rest if isinstance(backbone, Partial) else backbone
    people = Prepared(taught, start.manifest) if config.train == "all" else Frozen.of(taught, start)
    simulation = Simulation(config, module, people)
    simulation.run()
    return metrics.eer(laboratory.outcome(start.with_theta(simulation.theta)).trials.curve())
