"""Hypothesis profiles: the default fits the tier's 40 s, ``long`` is for the night.

``pytest tests/property --hypothesis-profile=long --timeout=0``
"""

from __future__ import annotations

from hypothesis import HealthCheck, settings

COMMON = {
    "deadline": None,
    "suppress_health_check": list(HealthCheck),
    "print_blob": True,
    "report_multiple_bugs": False,
}

settings.register_profile("default", max_examples=50, stateful_step_count=40, **COMMON)
settings.register_profile("long", max_examples=5000, stateful_step_count=100, **COMMON)
settings.load_profile("default")
