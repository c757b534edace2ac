"""What holds for all tests."""

from hypothesis import HealthCheck, settings

# A machine that others use as well is slow whenever it likes: no test may fail by the clock.
settings.register_profile("unhurried", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("unhurried")
