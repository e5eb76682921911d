"""What clients do with a model: one at a time (:mod:`.learner`), or a block of clients at once (:mod:`.blocks`)."""

from coterie.local.learner import Learner as Learner
from coterie.local.measure import BATCH_TO_MEASURE as BATCH_TO_MEASURE
from coterie.local.measure import Part as Part
from coterie.local.measure import Sums as Sums
from coterie.local.tasks import Job as Job
from coterie.local.tasks import Reply as Reply
from coterie.local.tasks import answer as answer
from coterie.local.tasks import answer_together as answer_together
from coterie.local.tasks import halvable as halvable
from coterie.local.tasks import halved as halved
from coterie.local.tasks import parts as parts
