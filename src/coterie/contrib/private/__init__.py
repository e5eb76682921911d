"""Private sums: methods that need only sums over clients, and masks under which a server reads nothing else.

:mod:`.split_half_sums` and :mod:`.split_half_private` are methods. :mod:`.cells` has their
questions to clients, and :mod:`.moments` their statistics. :mod:`.sums` adds up in one process;
:mod:`.flower` does so over Flower, under the masks of :mod:`.masks` if the boundary has them.
"""

from coterie.contrib.private.split_half_private import SplitHalfPrivate as SplitHalfPrivate
from coterie.contrib.private.split_half_sums import SplitHalfSums as SplitHalfSums
