"""``coterie suggest``: settings with which thresholded methods find a run's groups.

``suggesting.py`` probes the clients of a run (``probing.py``) and computes the settings
(``dendrogram_cuts.py``, ``cfl_settings.py``, ``ranges.py``). ``suggestion.py`` is the answer,
``remarks.py`` are its words, ``screen.py`` shows it in a terminal, and ``command.py`` is the
command. This module imports nothing, so that help appears immediately.
"""
