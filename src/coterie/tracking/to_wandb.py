"""Weights & Biases: offline in ``track/wandb`` of the call's folder; nothing is sent unless WANDB_MODE is set otherwise."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, cast

import wandb

from coterie.settings import UserError
from coterie.tracking.measures import TRACK, Picture, TrackerState

PROJECT = "coterie"
"""The name of the project if WANDB_PROJECT is not set."""


class Wandb:
    """Writes one run, with the same run id after a resume."""

    def __init__(self, folder: Path) -> None:
        mode = cast(Literal["online", "offline"], os.environ.get("WANDB_MODE", "offline"))
        self.place = TrackerState(folder, "wandb", where=mode)
        self._check_settings()
        home = Path(os.environ.get("WANDB_DIR") or self.place.home / TRACK)  # wandb makes its folder in it
        home.mkdir(parents=True, exist_ok=True)
        self.run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT), dir=home, id=self.place.identity, name=self.place.name,
            group=self.place.home.name, config=self.place.settings, mode=mode,
            resume="allow", settings=wandb.Settings(silent=True, console="off", save_code=False, disable_git=True,
                                                    x_disable_stats=True, x_disable_meta=True),
        )  # fmt: skip
        self.place.keep()

    def _check_settings(self) -> None:
        """Refuse settings that came with the run: they could name the server that receives the user's key."""
        path = Path.cwd() / "wandb" / "settings"
        if os.path.lexists(path) and Path.cwd().is_relative_to(self.place.home.resolve()):
            raise UserError(f"{path} came with the run and would be settings of Weights & Biases; call from another folder")

    def write(self, round: int, numbers: Mapping[str, float], text: str, pictures: Sequence[Picture]) -> None:
        """Write a round, see :class:`~coterie.tracking.measures.Writer`."""
        seen = {picture.name: wandb.Image(picture.pixels, caption=picture.caption) for picture in pictures}
        self.run.log({**numbers, **seen, **({"notes": text} if text else {})}, step=round)

    def close(self, finished: bool) -> None:
        """End the run."""
        self.run.finish()
