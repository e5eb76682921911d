"""The model, and a site's data: ``records.csv`` in the site's folder, read as the ``schema.toml`` next to it says."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path

import pandas as pd
from flwr.app import Context
from torch import nn

import coterie
from coterie import ClientData, Schema
from coterie.data.tasks import label_texts


def net() -> nn.Module:
    """The net that Coterie calls mlp, of 6 columns and 2 classes: change both to those of your schema."""
    return nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 2))


def folder(context: Context) -> Path:
    """The site's folder: ``folder`` of the node's config; in a simulation, the folder of the node's number."""
    if "folder" in context.node_config:
        return Path(str(context.node_config["folder"]))
    folders = sorted(Path(str(context.run_config["sites"])).iterdir())
    return folders[int(context.node_config["partition-id"])]


def site(context: Context) -> str:
    """The site's name, which is that of its folder."""
    return folder(context).name


def records(context: Context, target: str) -> pd.DataFrame:
    """The site's rows, read as in the trial: only an empty field is missing, and labels are names of classes."""
    path = folder(context) / "records.csv"
    frame = pd.read_csv(path, keep_default_na=False, na_values=[""], low_memory=False)
    # A label such as 0 or True is the class "0" or "True" of schema.toml.
    frame[target] = label_texts(frame, target, "records.csv")
    return frame


def schema(context: Context) -> Schema:
    """What the site's numbers mean: as agreed, unless its file has other columns or classes. The server refuses it then."""
    agreed = Schema.of(tomllib.loads((folder(context) / "schema.toml").read_text()))
    (target,) = agreed.targets
    frame = records(context, target)
    columns = tuple(frame.columns.drop(target))
    classes = tuple(sorted(frame[target].unique()))
    if not set(agreed.columns) <= set(columns):
        agreed = replace(agreed, columns=columns, scaling="", means=(), deviations=())
    if not set(classes) <= set(agreed.classes):
        agreed = replace(agreed, classes=classes)
    return agreed


def load(context: Context) -> ClientData:
    """The site's rows. Columns and classes are taken by their names, in the agreed order."""
    stated = schema(context)
    (target,) = stated.targets
    frame = records(context, target)
    x = frame[list(stated.columns)]
    y = frame[target].map(stated.classes.index).to_numpy()
    scaling = (stated.means, stated.deviations) if stated.means else "none"
    world = coterie.from_lists([(x, y)], classes=len(stated.classes), standardize=scaling)
    return world.clients[0]
