"""Settings for every test."""

from hypothesis import settings

# Machines differ: that one example took long is no failure.
settings.register_profile("metronome", deadline=None)
settings.load_profile("metronome")
