"""The settings of a boundary, and checks of methods, models and plans against it, if possible before the first round."""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import secrets
from dataclasses import dataclass, fields
from numbers import Integral
from pathlib import Path
from typing import Any

from coterie.core import STATISTICS, Plan, Task, needs_of
from coterie.files import read_regular, reason
from coterie.models.layout import Layout
from coterie.settings import SettingError, UserError, check, setting
from coterie.settings.calls import public

ROTATIONS = ("none", "permute", "permute-tensors", "blocks")
WHOLE_ROW = ("permute", "blocks")
"""Maps that move entries between layers."""
UNCHANGED = {
    "rotation": ROTATIONS,
    "signed-permutation": ("none", "permute", "permute-tensors"),
    "nothing": ("none",),
}
"""What does not change a method's results (``Needs.unchanged_by``) -> the maps that do not change them."""


@public
@dataclass(frozen=True, kw_only=True)
class Boundary:
    """The protection of an update before it is sent, in this order: clip, noise, rotation, compression."""

    rotation: str = setting(
        "none",
        "orthonormal map of the parameters: permute and permute-tensors move and flip entries, blocks mixes them",
        choices=ROTATIONS,
    )
    block: int = setting(
        64,
        "entries per block of rotation blocks",
        ge=2,
        le=4096,
        only_with={"rotation": ("blocks",)},
    )
    secret: int | None = setting(
        None,
        "number shared by the clients and hidden from the server: the seed of the map and of the first models; "
        "none: the run's seed, to compare runs with and without a map",
        ge=0,
        bits=4096,
    )
    clip: float | None = setting(
        None, "maximum L2 norm of an update; larger updates are scaled down", gt=0, lt=1e9
    )
    noise: float = setting(
        0.0,
        "standard deviation of the noise added to each entry, in units of clip (z)",
        ge=0,
        lt=1e6,
    )
    delta: float = setting(
        1e-5, "the δ at which the spent ε is reported", gt=0, lt=1, not_with={"noise": (0.0,)}
    )
    compress: str = setting(
        "none",
        "compression of updates: topk, sign (with one scale), 8bit",
        choices=("none", "topk", "sign", "8bit"),
    )
    share: float = setting(
        0.1,
        "fraction of the entries that topk sends; more than one half would cost more than all",
        gt=0,
        le=0.5,
        only_with={"compress": ("topk",)},
    )

    masks: bool = setting(
        False,
        "secure aggregation: clients send masked numbers, of which the server can read only the sum over clients",
    )
    bound: float = setting(
        1.0,
        "maximum change of one parameter that masked numbers can express; larger changes are cut to it",
        gt=0,
        lt=1e9,
    )
    honest: float = setting(
        0.8,
        "least share of the clients of a masked sum that must add noise; without them the sum is not read",
        gt=0.5,
        le=1,
        not_with={"noise": (0.0,)},
    )

    def __post_init__(self) -> None:
        # The secret is checked first, and apart: the message of `check` would show its value.
        if self.secret not in (None, "none") and (not _whole(self.secret) or self.secret < 0):
            raise SettingError(
                "Boundary.secret must be a non-negative integer or none; the given value is not shown"
            )
        check(self)
        # Then what the settings need of each other.
        if self.noise and self.clip is None:
            raise SettingError(
                f"Boundary.noise {self.noise:g} needs Boundary.clip, got none: without a maximum norm, noise gives no privacy"
            )
        active_setting = self._setting_of_updates
        if self.masks and active_setting:
            raise SettingError(
                f"Boundary.masks true needs Boundary.{active_setting} none, got {getattr(self, active_setting)}: "
                "masked numbers are not mapped or compressed"
            )
        if self.secret is not None and self.rotation == "none":
            raise SettingError("Boundary.secret needs Boundary.rotation, got none")

    def __repr__(self) -> str:
        shown_settings = [
            f"{field.name}={getattr(self, field.name)!r}"
            for field in fields(self)
            if field.name != "secret"
        ]
        return f"Boundary({', '.join(shown_settings)}{'' if self.secret is None else ', secret=<hidden>'})"

    @property
    def _setting_of_updates(self) -> str | None:
        """The first setting that changes single updates and is not off."""
        # Under masks, clip limits the masked numbers, and is no change of single updates.
        setting_names = ("rotation", "compress") if self.masks else ("rotation", "clip", "compress")
        for setting_name in setting_names:
            if getattr(self, setting_name) not in (None, "none"):
                return setting_name
        return None

    # -- compatibility checks

    def check_method(self, method: Any) -> None:
        """Check that the map does not change the results of a method, and that noise covers everything the method asks for.

        Args:
            method: The method; its :class:`~coterie.core.Needs` say what it asks for in later rounds.

        Raises:
            SettingError: The method is not compatible with the boundary.
        """
        needs = needs_of(method)
        # Losses on a client's data, and statistics of them, would be sent without noise.
        unprotected = {"losses", "held-out-losses", *STATISTICS}
        if self.noise and unprotected.intersection(needs.features):
            raise self._measured(method.name)
        if self.masks and set(STATISTICS).intersection(needs.features):
            raise self._asks_for_statistics(method.name)
        if self.masks and not needs.sums_only:
            raise SettingError(
                f"Boundary.masks must be false for {method.name}, got true: it needs the update, the losses or the choice "
                "of each client (Needs.sums_only is false)"
            )
        allowed_rotations = UNCHANGED[needs.unchanged_by]
        if self.rotation not in allowed_rotations:
            raise SettingError(
                f"Boundary.rotation must be {' or '.join(allowed_rotations)} for {method.name} with these settings, got "
                f"{self.rotation}: this map changes what {method.name} computes from updates (Needs.unchanged_by is "
                f"{needs.unchanged_by!r})"
            )
        # A method that steers others has their needs, too.
        for inner_method in needs.inner:
            self.check_method(inner_method)

    def check_layout(self, layout: Layout) -> None:
        """Check that noise is not used with a model that has running statistics.

        Args:
            layout: Layout of the model.

        Raises:
            SettingError: Noise is set, and the model has running statistics (BatchNorm).
        """
        if self.noise and layout.statistics:
            raise SettingError(
                f"Boundary.noise {self.noise:g} needs a model without running statistics (BatchNorm), got "
                f"{layout.statistics[0]!r}: these averages of a client's data would be sent without noise"
            )

    def check_plan(self, plan: Plan, layout: Layout, name: str) -> None:
        """Check that a plan asks for nothing that would pass the boundary unprotected, or that a map has moved.

        Args:
            plan: The plan.
            layout: Layout of the model.
            name: Name of the method.

        Raises:
            SettingError: The plan asks for losses under noise, or for single columns under a map of
                the whole row.
        """
        tasks = set(plan.tasks.values())
        active_setting = self._setting_of_updates
        if plan.need == "sums" and active_setting:
            raise SettingError(
                f"Boundary.{active_setting} must be none for {name}, got {getattr(self, active_setting)}: "
                "it asks for sums over clients, in which single updates are not protected but hidden"
            )
        if self.noise and not all(self.covers(task, plan.private.hides_choices) for task in tasks):
            raise self._measured(name)
        if self.masks and any(task.statistics for task in tasks):
            raise self._asks_for_statistics(name)
        # A map of the whole row hides where a layer is.
        if self.rotation in WHOLE_ROW:
            all_layers = set(layout.columns)
            if any(task.local_layers and set(task.local_layers) != all_layers for task in tasks):
                raise self.hidden(f"{name} keeps some layers at the clients")
            if plan.columns is not None and _span(plan.columns, layout) != (0, layout.trainable):
                raise self.hidden(f"{name} compares updates by some of their columns")

    def covers(self, task: Task, hidden: bool) -> bool:
        """Return whether noise covers everything that a client says in a task, besides updates.

        Args:
            task: The task.
            hidden: Whether its plan is hidden.
        """
        # No noise is added to losses on held-out data, or to statistics.
        if task.holdout.report_losses or task.statistics:
            return False
        # An answer is noised only if its numbers are bounded, or if it is the choice of a cell.
        question = task.private.question
        asks_cell = question is not None and question.asks_cell
        if question is not None and not (asks_cell or question.is_bounded):
            return False
        # A choice among models shows which has the least loss, except where masks hide it.
        chooses = bool(task.measure) or asks_cell
        return not chooses or (hidden and self.masks)

    def _measured(self, method_name: str) -> SettingError:
        return SettingError(
            f"Boundary.noise {self.noise:g} cannot be used with {method_name} and these settings: "
            "clients would send losses or statistics of their data, or choices based on them, without noise"
        )

    def _asks_for_statistics(self, method_name: str) -> SettingError:
        return SettingError(
            f"Boundary.masks must be false for {method_name}, got true: it asks each client for statistics of its data"
        )

    def hidden(self, hiding_reason: str) -> SettingError:
        """The error for access to a layer in a row that is mapped as a whole."""
        return SettingError(
            f"Boundary.rotation must be none or permute-tensors if {hiding_reason}, got {self.rotation}, which hides the layers"
        )


def _whole(value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def _span(columns: slice, layout: Layout) -> tuple[int, int]:
    start, stop, _ = columns.indices(layout.size)
    return start, stop


# ----------------------------------------------------------------------------------------------------
# The secret of a boundary: the user gives it whenever it is needed, and a record keeps only a
# digest.
#
# The digest is slow and salted. It shows whether a secret is the same, and a search through many
# secrets takes long. A secret of few digits can still be found by search.


SECRET_VARIABLE = "COTERIE_SECRET"
"""Environment variable that holds the secret."""

MAX_SECRET_DIGITS = 1000

_DIGEST_KIND = "scrypt"
_HOW_TO_GIVE_SECRET = f"set {SECRET_VARIABLE}, or pass --secret-file FILE, or secret= in Python"


@public
def known_by(secret: int) -> str:
    """The text by which a record identifies a secret: ``scrypt``, a new salt, and the digest."""
    salt = secrets.token_bytes(16)
    return f"{_DIGEST_KIND}:{salt.hex()}:{_digest(secret, salt).hex()}"


@public
def unlike_secret(secret: int | None, known_digest: str) -> str | None:
    """The reason why a secret is not the one of ``known_digest``, as the end of a sentence; None if it is."""
    if secret is None:
        return f", which was not given: {_HOW_TO_GIVE_SECRET}"
    try:
        # The salt of the record with the given secret must give the digest of the record.
        digest_kind, salt_hex, digest_hex = known_digest.split(":")
        is_same = digest_kind == _DIGEST_KIND and hmac.compare_digest(
            _digest(secret, bytes.fromhex(salt_hex)), bytes.fromhex(digest_hex)
        )
    except ValueError:
        is_same = False
    return None if is_same else f", and a different one was given: {_HOW_TO_GIVE_SECRET}"


@public
def secret_of_environment() -> int | None:
    """The secret of the environment variable, or None."""
    secret_text = os.environ.get(SECRET_VARIABLE)
    return (
        None
        if secret_text is None
        else _number(secret_text, f"the environment variable {SECRET_VARIABLE}")
    )


@public
def secret_of_file(secret_file: Path | str) -> int:
    """Read the secret from a file that contains nothing else.

    Args:
        secret_file: The file.

    Returns:
        The secret.

    Raises:
        UserError: The file cannot be read or is not an integer >= 0.
    """
    try:
        file_bytes = read_regular(secret_file, limit=10_000)
    except OSError as error:
        # The message does not repeat a secret that was given for the file's name.
        if re.fullmatch(r"[\d\s_,.+-]+", str(secret_file)):
            raise UserError(
                "the secret file cannot be read; its name is a number and not shown: did you pass the secret itself?"
            ) from None
        raise UserError(f"{secret_file} cannot be read: {reason(error)}") from error
    # An editor may have put a byte order mark before the number.
    return _number(file_bytes.decode("utf-8-sig", errors="replace"), str(secret_file))


def _number(secret_text: str, digit_source: str) -> int:
    digits = secret_text.strip()
    if not (digits.isascii() and digits.isdecimal() and len(digits) <= MAX_SECRET_DIGITS):
        raise UserError(
            f"{digit_source} must contain a secret, a non-negative integer, and nothing else; its content is not shown"
        )
    return int(secret_text)


def _digest(secret: int, salt: bytes) -> bytes:
    return hashlib.scrypt(str(secret).encode(), salt=salt, n=2**14, r=8, p=1, maxmem=2**26)
