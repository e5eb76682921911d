"""Groups of clients whose models are scikit-learn's or XGBoost's, by the losses of each model at each client.

Such models have no updates that a server could average. But every client can score the model of
every other, which is what IFCA (A. Ghosh et al., arXiv 2006.04088) and CLoVE (arXiv 2506.22427)
group clients by, and predictions can be averaged: a group is served by the ensemble of its members'
models.

- :mod:`.models`: the kinds of models
- :mod:`.grouping`: cross-losses, groups, the number of groups
- :mod:`.federating`: :func:`federate`, from a world to scores and a placement of new clients
- :mod:`.command`: ``coterie trees``
"""

from typing import TYPE_CHECKING

from coterie.extensions import lazily

if TYPE_CHECKING:
    from coterie.contrib.trees.federating import TreeFederation as TreeFederation
    from coterie.contrib.trees.federating import federate as federate

__all__ = ["TreeFederation", "federate"]

# Imported on first use, so that help appears immediately.
__getattr__ = lazily(__name__, dict.fromkeys(__all__, "federating"))
