"""Whether the domain's mean is subtracted before two embeddings of the released model are compared.

What all people of a domain share (a microphone, a room, noise) adds the same to every cosine and tells nobody apart.
Without it noisy telephone speech is told apart better, and a domain of many languages somewhat worse
(examples/reproduce/selfcalibration). No model changes by it: :mod:`uvsdk.release.centring` moves one that is made to be
moved, before training. So it is measured, on the people themselves: devices report of the released model
twice, and it is done only where fewer genuine trials are rejected, beyond what chance explains.
"""

from __future__ import annotations

from dataclasses import dataclass

from uvsdk.release.gate import CONFIDENCE, LEAST_PEOPLE, paired_error
from uvsdk.release.measurement import Measured


@dataclass(frozen=True, slots=True)
class Subtraction:
    """What was measured of one model, with its domain's mean and without.

    Args:
        fmr: false match rate of both.
        fnmr: share of genuine trials that are rejected of embeddings as they are.
        centred_fnmr: the same without the mean.
        interval: 95 %, of ``centred_fnmr`` less ``fnmr``.
        chosen: whether it is better without the mean, so that the model is calibrated and verifies so.
    """

    fmr: float
    fnmr: float
    centred_fnmr: float
    interval: tuple[float, float]
    chosen: bool


def compare(whole: Measured, centred: Measured) -> Subtraction:
    """At one rate and on the same people, as the gate compares two models, but for two things.

    A candidate may replace what verifies where it is no worse; nothing is gained by a change that changes nothing, so
    here fewer genuine trials must be rejected at the upper end of the interval as well. And it goes by that rate alone:
    the rates around it that :func:`uvsdk.release.gate.judge` looks at reach far into tails that nobody has measured,
    and those of two scores differ in shape.

    Args:
        whole: of embeddings as they are.
        centred: of the same people at the same rate, without the mean.
    """
    change = centred.fnmr - whole.fnmr
    error = CONFIDENCE * paired_error(centred.replicates, whole.replicates)
    enough = min(whole.people, centred.people) >= LEAST_PEOPLE
    better = enough and change + error < 0.0 and centred.worst_fnmr <= whole.worst_fnmr
    return Subtraction(whole.fmr, whole.fnmr, centred.fnmr, (change - error, change + error), better)
