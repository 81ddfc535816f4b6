"""Measuring a verification system: trials, error rates with intervals, plots and a report.

Terms are those of ISO/IEC 19795-1: a *genuine* trial compares a probe with the template of the same person, an
*impostor* trial with the template of somebody else; FMR and FNMR are the false match and false non-match rates of
the comparison, counted over the samples that could be processed; failure to acquire and failure to enrol are
counted apart.

Rooms: :mod:`~uvsdk.evaluation.metrics` (numbers), :mod:`~uvsdk.evaluation.ranking` (retrieval),
:mod:`~uvsdk.evaluation.protocols` (people), :mod:`~uvsdk.evaluation.trial_lists`, :mod:`~uvsdk.evaluation.lfw` (lists
of :mod:`~uvsdk.evaluation.pairs`) say which comparisons are made, :mod:`~uvsdk.evaluation.acquisition` reads the
samples, :mod:`~uvsdk.evaluation.bootstrap` and :mod:`~uvsdk.evaluation.rates` make intervals,
:mod:`~uvsdk.evaluation.groups`, :mod:`~uvsdk.evaluation.conditions` and :mod:`~uvsdk.evaluation.calibrated` look at
groups of people, at poor samples and at the bundle's own thresholds, :mod:`~uvsdk.evaluation.summary` gathers all of
it, :mod:`~uvsdk.evaluation.record` turns it into JSON, and :mod:`~uvsdk.evaluation.plots`,
:mod:`~uvsdk.evaluation.report` and :mod:`~uvsdk.evaluation.pages` into what a person looks at (they need the
``evaluate`` extra). Presentation attack detectors have rates and terms of their own (ISO/IEC 30107-3):
:mod:`~uvsdk.evaluation.presentation`.
"""
