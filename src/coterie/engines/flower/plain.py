"""Apps that know nothing of Coterie: what they can do, and how a method is refused that asks for more."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from coterie.core import Client, Method, Plan, Task
from coterie.settings import SettingError

ABLE = ("fedavg", "cfl", "flhc", "hcct", "hcct-e")
"""Methods that such apps take part in, with their default settings."""


def ignored(task: Task) -> str | None:
    """What of a task such an app would ignore, in words: it trains from one model, in its own way."""
    return (
        "to choose among several models" if len(task.offered) > 1
        else "the loss of a model" if task.measure
        else "a gradient in place of an update" if task.gradient
        else "to keep layers to itself" if task.keep
        else "for updates of both halves of its data" if task.halves
        else "to train in another way than in other rounds" if task.training is not None or task.epochs is not None
        else None
    )  # fmt: skip


def sentence(method: str, task: Task, client: Client) -> str | None:
    """Why a client cannot be asked to do a task; None where it can."""
    wants = ignored(task)
    able = f"{', '.join(ABLE[:-1])} or {ABLE[-1]}"
    return wants and (
        f"{method} asks a client {wants}, and client {client}'s app, which knows nothing of Coterie, would ignore that; make "
        f"the app with coterie.engines.flower.client_app, or take {able} with its default settings"
    )


def check(method: Method[Any], first: Plan, aware: Collection[Client]) -> None:
    """Raises :class:`~coterie.settings.SettingError` before anybody trains, where no client's app knows of Coterie and
    ``method`` will ask for what they would ignore: in its ``first`` plan; in tasks that it tells of in ``asks``; or for
    losses, as ``measures`` tells it for a boundary. Where some are ``aware``, the others are left out as they are asked."""
    if aware:
        return
    later: tuple[Task, ...] = getattr(method, "asks", ())
    if getattr(method, "measures", False):
        later = (*later, Task(offered=(0,), measure="train"))
    for task in (*first.tasks.values(), *later):
        if told := sentence(method.name, task, min(first.tasks, default=0)):
            raise SettingError(told)
