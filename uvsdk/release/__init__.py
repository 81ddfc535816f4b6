"""From a candidate to a release: what devices report of a model, how their sums become a calibration, and the gate.

Rooms: :mod:`~uvsdk.release.grid` (histograms and quantised moments), :mod:`~uvsdk.release.report` (what one device
says), :mod:`~uvsdk.release.sums` (what is kept of many), :mod:`~uvsdk.release.measurement` (calibration and error rates
of the sums), :mod:`~uvsdk.release.gate` (whether to release), :mod:`~uvsdk.release.record` (a release, signed),
:mod:`~uvsdk.release.acceptance` (what a device tries before it switches). Pure functions; loops, clocks and stores stay
with the server, the device and the simulation.
"""
