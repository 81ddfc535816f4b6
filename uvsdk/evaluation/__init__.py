"""Measuring a verification system: trials, error rates with intervals, plots and a report.

Terms are those of ISO/IEC 19795-1: a *genuine* trial compares a probe with the template of the same person, an
*impostor* trial with the template of somebody else; FMR and FNMR are the false match and false non-match rates of
the comparison, counted over the samples that could be processed; failure to acquire and failure to enrol are
counted apart.

Rooms: :mod:`~uvsdk.evaluation.metrics` (numbers), :mod:`~uvsdk.evaluation.ranking` (retrieval and class metrics),
:mod:`~uvsdk.evaluation.trials` and :mod:`~uvsdk.evaluation.protocols` (which comparisons are made),
:mod:`~uvsdk.evaluation.bootstrap` (intervals), :mod:`~uvsdk.evaluation.plots` and
:mod:`~uvsdk.evaluation.report` (what a person looks at; need the ``evaluate`` extra).
"""
