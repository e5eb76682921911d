"""``coterie tune``: the best settings of each method by validation scores, with the same number of trials for all.

``space.py`` says which values a setting may have, ``proposing.py`` proposes the settings of the next
trials by Optuna, ``judging.py`` runs a trial on clients without their test data, ``tuning.py`` makes
all trials and keeps their record, ``results.py`` writes the tuned experiment and the tables, and
``command.py`` is the command. This module imports nothing, so that help appears immediately.
"""
