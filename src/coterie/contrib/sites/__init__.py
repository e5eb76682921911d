"""Sites with messy tables: from ``coterie schema`` over runs to federations, and predictions for raw rows.

``cells.py`` reads columns as texts. ``columns.py`` has what a column can be (a number, a category, a
boolean, a date, a text) and makes features of it, ``table_schema.py`` is the file with all columns.
``agreement.py`` finds the constants from sums over the training rows of the clients. ``inferring.py``
proposes a schema, which ``screen.py`` shows and ``command.py`` writes. ``worlds.py`` makes the clients
of a run, ``prediction.py`` applies an export to raw rows.

From a simulation to sites: ``federation_file.py`` is the one file, ``site.py`` has the rows of a site,
which ``sources.py`` reads, and ``flower/`` has the commands, the apps, and the agreement on constants,
under masks with ``masked_answers.py``. This module imports nothing, so that help appears immediately.
"""
