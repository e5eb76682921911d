"""The contract between a method, its clients and an engine.

The same letters are used everywhere: ``n`` clients in an exchange, ``k`` models, ``m`` models
offered to one client, ``d`` parameters. A model is a row of ``d`` float32 numbers. Several models
are a matrix ``(k, d)``. An *update* is the change that local training made to the offered model,
``trained - offered``.

One *exchange* is one ``plan`` (which clients train, and from which models) and one ``step`` (the
use of the replies). The network lies between the two. A communication *round* is one or more
exchanges: a :class:`Plan` states whether its exchange ends the round. A method is a set of pure
functions over an immutable state. An engine may therefore run it in one process or over a network,
and may stop it and continue a week later.
"""

from __future__ import annotations

from coterie.core.averaging import CHUNK, MEANS, Averaging, Means, average
from coterie.core.client_table import ClientTable
from coterie.core.clients import (
    LONGEST_NAME,
    NOT_STORED,
    STATES,
    STORED,
    AllBut,
    Client,
    Groups,
    SharedValues,
    among,
    as_groups,
    groups_by,
    joined,
    row_of,
    state,
    without,
)
from coterie.core.method import (
    Admits,
    Assignment,
    Cohort,
    Composite,
    Federation,
    Method,
    serving_tasks,
)
from coterie.core.needs import FEATURES, Feature, Needs, check_declared, check_training, needs_of
from coterie.core.notes import P_VALUE, Criterion, Effect, Note, Sign, tested
from coterie.core.replies import (
    WORST_LOSS,
    AppliedLimits,
    Candidate,
    HalvedUpdates,
    HeldOutLosses,
    QuestionSums,
    Replies,
    amounts,
    group_means,
    rows_without,
    weights,
)
from coterie.core.rounds import HALVES, OPTIMIZER, Kept, Position, Round
from coterie.core.tasks import (
    STATISTICS,
    WITH_NEIGHBOURS,
    Holdout,
    Need,
    Neighbours,
    Personal,
    Plan,
    PrivatePlan,
    PrivateTask,
    Question,
    Stage,
    Statistic,
    Task,
    Training,
    Weighting,
    train_from,
)

__all__ = [
    "CHUNK",
    "FEATURES",
    "HALVES",
    "LONGEST_NAME",
    "MEANS",
    "NOT_STORED",
    "OPTIMIZER",
    "P_VALUE",
    "STATES",
    "STATISTICS",
    "STORED",
    "WITH_NEIGHBOURS",
    "WORST_LOSS",
    "Admits",
    "AllBut",
    "AppliedLimits",
    "Assignment",
    "Averaging",
    "Candidate",
    "Client",
    "ClientTable",
    "Cohort",
    "Composite",
    "Criterion",
    "Effect",
    "Feature",
    "Federation",
    "Groups",
    "HalvedUpdates",
    "HeldOutLosses",
    "Holdout",
    "Kept",
    "Means",
    "Method",
    "Need",
    "Needs",
    "Neighbours",
    "Note",
    "Personal",
    "Plan",
    "Position",
    "PrivatePlan",
    "PrivateTask",
    "Question",
    "QuestionSums",
    "Replies",
    "Round",
    "SharedValues",
    "Sign",
    "Stage",
    "Statistic",
    "Task",
    "Training",
    "Weighting",
    "among",
    "amounts",
    "as_groups",
    "average",
    "check_declared",
    "check_training",
    "group_means",
    "groups_by",
    "joined",
    "needs_of",
    "row_of",
    "rows_without",
    "serving_tasks",
    "state",
    "tested",
    "train_from",
    "weights",
    "without",
]
