"""The engine ``ray``: a run's clients train on the nodes of a Ray cluster.

``engine.py`` is what Coterie calls, and ``cluster.py`` carries out the rounds. This module imports
nothing, because Ray is an extra.
"""
