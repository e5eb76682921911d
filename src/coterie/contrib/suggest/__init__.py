"""``coterie suggest``: settings with which thresholded methods find a run's groups.

``suggestion.py`` probes the clients and computes the settings, ``screen.py`` shows them in a terminal,
and ``command.py`` is the command. This module imports nothing, so that help appears immediately.
"""
