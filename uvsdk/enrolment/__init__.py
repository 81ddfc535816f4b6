"""What stands behind :func:`uvsdk.enroll`, and what happens to a template afterwards.

Rooms: :mod:`~uvsdk.enrolment.intake` (samples to embeddings, the fate of each),
:mod:`~uvsdk.enrolment.consistency` (samples of somebody else), :mod:`~uvsdk.enrolment.completeness` (what is missing,
how often the person will be rejected), :mod:`~uvsdk.enrolment.ageing` (templates that follow their people).
"""
