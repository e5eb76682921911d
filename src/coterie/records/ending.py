"""When a run ends: after its last round, at its target, or when its validation score no longer improves.

The best round is the one with the best mean over clients of the main metric on the examples that are
set aside for validation scores. Test scores decide nothing here but a target.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from coterie.data.objective import VALIDATION
from coterie.records.shown import Line, mean_of, shown_as, spread
from coterie.settings import UserError


@dataclass(frozen=True)
class BestRound:
    """The round with the best validation score, the first of several with the same one.

    Attributes:
        round: The number of the round.
        metric: The name of the score, such as ``validation_accuracy``.
        score: Its mean over the honest clients.
    """

    round: int
    metric: str
    score: float


@dataclass
class Ending:
    """Whether a run has ended, and its best round, as far as its rounds were followed.

    Attributes:
        num_rounds: Rounds of the run.
        target: The run ends when the mean of its main metric reaches this; None for no target.
        stop_after: The run ends after so many rounds without a better validation score (the
            *patience* of early stopping); None to make all rounds.
        best: The best round so far; None without validation scores.
        ended: Whether the run ends with the last round that was followed.
        stopped: Whether it ends because there was no better validation score for ``stop_after``
            rounds.
    """

    num_rounds: int
    target: float | None = None
    stop_after: int | None = None
    best: BestRound | None = field(default=None, init=False)
    ended: bool = field(default=False, init=False)
    stopped: bool = field(default=False, init=False)

    @classmethod
    def of(cls, description: Mapping[str, Any], shown_lines: Iterable[Line]) -> Ending:
        """The ending of a recorded run.

        Args:
            description: The content of its ``run.toml``.
            shown_lines: Its rounds, from the first one on.
        """
        ending = cls(
            description["rounds"], description.get("target"), description.get("stop_after")
        )
        for shown_line in shown_lines:
            ending.follow(shown_line)
        return ending

    def follow(self, shown_line: Line) -> bool:
        """Take the next round into account.

        Args:
            shown_line: The shown record of the round.

        Returns:
            Whether the run ends with it.
        """
        has_reached_target = False
        self.stopped = False
        # Only a tested round has scores, and so can end a run early.
        if shown_line["tested"]:
            self.best = _better(self.best, shown_line)
            has_reached_target = self._has_reached_target(shown_line)
            if self.stop_after is not None and self.best is not None:
                self.stopped = shown_line["round"] - self.best.round >= self.stop_after
        is_last_round = shown_line["round"] >= self.num_rounds
        self.ended = is_last_round or has_reached_target or self.stopped
        return self.ended

    def _has_reached_target(self, shown_line: Line) -> bool:
        if self.target is None:
            return False
        main_mean = spread(shown_line)["mean"]
        is_greater_better = shown_as(shown_line).better == "greater"
        return bool(main_mean >= self.target if is_greater_better else main_mean <= self.target)


def best_round_of(
    run: Path | str, description: Mapping[str, Any], shown_lines: Iterable[Line]
) -> int:
    """Return the round of a run with the best validation score.

    Args:
        run: The run directory.
        description: The content of its ``run.toml``.
        shown_lines: Its rounds, from the first one on.

    Raises:
        UserError: The run has no validation scores.
    """
    best = Ending.of(description, shown_lines).best
    if best is None:
        raise UserError(
            f"{run} has no validation scores, by which a round is the best: run with --validation-share 0.2"
        )
    return best.round


def _better(best: BestRound | None, shown_line: Line) -> BestRound | None:
    """The better one of the best round so far and a tested round; the earlier one if both are equal."""
    naming = shown_as(shown_line)
    metric_name = VALIDATION + naming.main
    score = mean_of(shown_line, shown_line["clients"], metric_name)
    if score is None:
        return best
    is_better = (
        best is None
        or (naming.direction(metric_name) == "greater" and score > best.score)
        or (naming.direction(metric_name) == "smaller" and score < best.score)
    )
    return BestRound(shown_line["round"], metric_name, score) if is_better else best
