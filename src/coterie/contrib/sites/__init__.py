"""Sites with messy tables: ``coterie schema``, runs over tables as they are, and predictions for raw rows.

``cells.py`` reads columns as texts. ``columns.py`` has what a column can be (a number, a category, a
boolean, a date, a text) and makes features of it, ``table_schema.py`` is the file with all columns.
``agreement.py`` finds the constants from sums over the training rows of the clients. ``inferring.py``
proposes a schema, which ``screen.py`` shows and ``command.py`` writes. ``worlds.py`` makes the clients
of a run, ``prediction.py`` applies an export to raw rows. This module imports nothing, so that help
appears immediately.
"""
