"""Federations of sites with tables over Flower.

``command.py`` has ``coterie federation`` and ``coterie node``, ``site_app.py`` and ``site_server.py`` the
apps, and ``grid_agreement.py`` asks the sites for sums of their rows.
"""
