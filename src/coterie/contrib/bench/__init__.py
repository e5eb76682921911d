"""``coterie bench``: a method on frozen worlds, compared with the recorded rows of all others.

``suites.py`` has the worlds of each suite: of pictures and texts (``kinds.py``, ``held_out.py``), of
few unequal sites (``silos.py``), and of data that change. ``measuring.py`` runs a method in them,
``rows.py`` reads, checks and keeps the results, ``ranking.py`` compares methods, ``tables.py`` and
``diagram.py`` show it, and ``command.py`` is the command. Speed is measured elsewhere, by
``make bench``. This module imports nothing, so that help appears immediately.
"""
