"""Examples may take as long as they need: on a busy machine a deadline fails tests that are right."""

from hypothesis import settings

settings.register_profile("unhurried", deadline=None)
settings.load_profile("unhurried")
