"""A device whose template takes one step after another, as fast as the disk allows, until it is killed."""

from __future__ import annotations

import itertools
import sys

import numpy as np

from uvsdk.bundle import shipped
from uvsdk.enrolment.ageing import AgeingPolicy
from uvsdk.scoring import Decision
from uvsdk.templates.template import Template
from uvsdk_device import EncryptedStore
from uvsdk_device.ageing import TemplateAgeing, read_history

POLICY = AgeingPolicy(interval_s=0.0, require_live=False, weight=0.05, minimum_cosine=0.98)


def main(folder: str, user_id: str) -> None:
    """Walk ``user_id``'s template round and round inside its cone."""
    store = EncryptedStore.open(folder, passphrase="p")
    bundle = shipped()
    enrolled = store.template(user_id)
    history = read_history(store, user_id)
    ticks = itertools.count(1.0 if history is None else history.last_step_s + 1.0)  # time goes on where it was killed
    ageing = TemplateAgeing(store, bundle, POLICY, lambda: next(ticks))
    rng = np.random.default_rng()
    print("ready", flush=True)
    while True:
        ageing.learn(user_id, enrolled, probe=probe_near(enrolled, rng), decision=accepted(enrolled))
        print("learned", flush=True)


def probe_near(enrolled: Template, rng: np.random.Generator) -> np.ndarray:
    """A unit vector about 25 degrees from the enrolment's template."""
    noise = rng.standard_normal(len(enrolled.embedding))
    vector = enrolled.embedding + 0.45 * noise / np.linalg.norm(noise)
    return (vector / np.linalg.norm(vector)).astype(np.float32)


def accepted(enrolled: Template) -> Decision:
    """A decision that accepts, as :meth:`Runtime.verify` would have made."""
    assert enrolled.threshold is not None
    return Decision(1.0, enrolled.threshold, enrolled.model_version, llr=100.0)


if __name__ == "__main__":
    main(*sys.argv[1:])
