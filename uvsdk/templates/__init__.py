"""What is kept of a person, where it is kept, and how often it may be tried.

Rooms: :mod:`~uvsdk.templates.template` (the enrolled record and its sealed bytes) · :mod:`~uvsdk.templates.storage`
(enrolments between calls) · :mod:`~uvsdk.templates.gallery` (the people to search) · :mod:`~uvsdk.templates.attempts`
(when verification waits or closes).
"""
