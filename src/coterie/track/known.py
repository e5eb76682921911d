"""The trackers by name, and what each needs installed."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable

from coterie.settings import UserError, nearest

TRACKERS = {
    "tensorboard": ("tensorboard", "PIL"),
    "mlflow": ("mlflow", "sqlalchemy", "alembic", "PIL"),
    "wandb": ("wandb", "PIL"),
}
"""Name -> the modules it needs."""


def check(names: Iterable[str]) -> list[str]:
    """``names`` without repetitions. Raises :class:`~coterie.settings.UserError` for an unknown one, and where a module that
    it needs is not installed."""
    chosen = list(dict.fromkeys(names))
    for name in chosen:
        if name not in TRACKERS:
            raise UserError(f"there is no tracker {name!r}{nearest(name, TRACKERS)} (known: {', '.join(TRACKERS)})")
        missing = [module for module in TRACKERS[name] if not installed(module)]
        if missing:
            raise UserError(f"tracking with {name} needs the module {missing[0]}: pip install 'coterie[track]'")
    return chosen


def installed(module: str) -> bool:
    """Whether there is such a module. A mere folder of this name, as wandb leaves behind where it is run, is none."""
    found = importlib.util.find_spec(module)
    return found is not None and found.origin is not None
