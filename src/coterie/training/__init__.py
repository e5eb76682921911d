"""Local training and measuring of models: one client at a time (:mod:`.learner`), or a block of clients (:mod:`.blocks`)."""

from coterie.training.jobs import Job as Job
from coterie.training.jobs import Reply as Reply
from coterie.training.jobs import answer as answer
from coterie.training.jobs import answer_together as answer_together
from coterie.training.jobs import beside_halves as beside_halves
from coterie.training.jobs import halvable as halvable
from coterie.training.jobs import halved as halved
from coterie.training.jobs import halves as halves
from coterie.training.jobs import held_out as held_out
from coterie.training.jobs import of_each_subject as of_each_subject
from coterie.training.jobs import parts as parts
from coterie.training.learner import BATCH_TO_MEASURE as BATCH_TO_MEASURE
from coterie.training.learner import Learner as Learner
from coterie.training.learner import Part as Part
from coterie.training.learner import Sums as Sums
from coterie.training.learner import batchnorm as batchnorm
from coterie.training.neighbours import WithNeighbours as WithNeighbours
from coterie.training.neighbours import remembered as remembered
from coterie.training.neighbours import sums_with_neighbours as sums_with_neighbours
