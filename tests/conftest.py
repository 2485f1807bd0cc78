"""What all tests share: property tests have no time limit per example, for a busy machine is no bug."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

settings.register_profile("einmal", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("einmal")
