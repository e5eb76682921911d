"""TensorBoard: event files in ``track/tensorboard/RUN`` of the call's folder, by PyTorch's writer, without TensorFlow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from torch.utils.tensorboard import SummaryWriter
from torch.utils.tensorboard.summary import hparams

from coterie.tracking.measures import TRACK, Picture, TrackerState


class TensorBoard:
    """Writes one run. Rounds after the last one known to be complete are hidden in the viewer and written again."""

    def __init__(self, folder: Path) -> None:
        self.place = TrackerState(folder, "tensorboard")
        to, done = self.place.home / TRACK / "tensorboard" / self.place.name, self.place.round
        self.writer = SummaryWriter(str(to), purge_step=done + 1)
        if not done:
            for summary in hparams(self.place.settings, {"accuracy/mean": 0.0}):  # its curve is shown beside the settings
                self.writer._get_file_writer().add_summary(summary)

    def write(self, round: int, numbers: Mapping[str, float], text: str, pictures: Sequence[Picture]) -> None:
        """Write a round, see :class:`~coterie.tracking.measures.Writer`."""
        for name, value in numbers.items():
            self.writer.add_scalar(name, value, round)
        for picture in pictures:
            self.writer.add_image(picture.name, picture.pixels, round, dataformats="HWC")
            self.writer.add_text(f"{picture.name}/caption", picture.caption, round)
        if text:
            self.writer.add_text("notes", text.replace("\n", "  \n"), round)  # Markdown's line break
        self.writer.flush()

    def close(self, finished: bool) -> None:
        """Close the event files."""
        self.writer.close()
