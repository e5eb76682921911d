"""Private sums: methods that need only sums over clients, and masks under which a server reads nothing else.

``split_half_sums`` and ``split_half_private`` are methods. ``cells`` has their questions to clients,
``moments`` their statistics, and ``group_search`` the search for the parts of a group. ``sums`` adds
up in one process. ``flower`` does so over Flower, under the masks of ``masks`` if the boundary has
them.
"""

from coterie.contrib.private.split_half_private import SplitHalfPrivate as SplitHalfPrivate
from coterie.contrib.private.split_half_sums import SplitHalfSums as SplitHalfSums
