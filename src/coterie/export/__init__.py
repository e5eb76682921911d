"""Models taken out of a run, as safetensors that need no Coterie; and loaded again.

A folder has ``models.json`` and a file per model: the ``state_dict`` of the clients' module. Nothing is ever unpickled.
"""

from __future__ import annotations

from coterie.export.loading import Ensemble as Ensemble
from coterie.export.loading import load as load
from coterie.export.saving import MODELS as MODELS
from coterie.export.saving import save as save
