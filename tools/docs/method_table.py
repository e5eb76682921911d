"""The tables of all methods: what each does, what the server sees of a client, what is sent; and the presets.

``tests/docs/test_method_table.py`` plays every method, and compares what it asks of clients with these words.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass

from measured import table

from coterie import METHODS
from coterie.methods._presets import presets_of
from coterie.report.listing import assignments, first_line

ARXIV = "https://arxiv.org/abs/"


@dataclass(frozen=True)
class Facts:
    """What a row says of a method, as its card explains.

    Attributes:
        use: What clients use.
        groups: The setting that decides how many groups there are; "found" if none does.
        server_sees: What the server learns of single clients.
        down: How many models a client receives in a round.
        up: How many updates it sends.
        newcomers: What a client has that joins later.
    """

    use: str
    groups: str
    server_sees: str
    down: str
    up: str
    newcomers: str


ONE_MODEL = Facts("one model", "–", "means", "1", "1", "the model")
OWN_HEAD = Facts("own head", "–", "means", "1, no head", "1, no head", "initial head")
PERSONAL = Facts("own models", "–", "means", "1", "1", "shared model")
HCCT = Facts("groups", "`tradeoff`", "each update", "1", "1", "alone, then by gain")
MIXTURES = Facts("own models", "–", "each update", "1", "1", "mean of all models")
BEST_OF_K = Facts("groups", "`models`", "means; choices, losses", "k", "1", "by loss")

FACTS = {
    "auto": Facts(
        "what is best", "found", "each update; held-out losses", "1 to 3", "1 to 4", "what is used"
    ),
    "fedavg": ONE_MODEL,
    "fedprox": ONE_MODEL,
    "fedopt": Facts("as its method", "any", "as its method", "any", "any", "its method's"),
    "timed": Facts("as its method", "any", "as its method; sizes", "any", "any", "its method's"),
    "scaffold": Facts("one model", "–", "each update", "2", "1", "the model"),
    "independent": Facts("alone", "–", "nothing", "0", "0", "initial model"),
    "cfl": Facts("groups", "found", "each update", "1", "1", "walk down a tree"),
    "flhc": Facts("groups", "`threshold`", "each update, once", "1", "1 or 2", "nearest update"),
    "hcct": HCCT,
    "hcct-e": HCCT,
    "hcct-p": Facts(
        "groups, own head",
        "`tradeoff`",
        "each update",
        "1, no head",
        "1, no head",
        "as HCCT, initial head",
    ),
    "fedper": OWN_HEAD,
    "fedbn": Facts(
        "own BatchNorm", "–", "means", "1, no BatchNorm", "1, no BatchNorm", "initial BatchNorm"
    ),
    "ditto": PERSONAL,
    "apfl": PERSONAL,
    "fedamp": MIXTURES,
    "fedrep": OWN_HEAD,
    "fedbabu": PERSONAL,
    "knn-per": Facts("own predictions", "–", "means", "1", "1", "at once"),
    "acfl": Facts(
        "own models in groups", "`threshold`", "each update", "1 or 2", "1 or 2", "nearest update"
    ),
    "maxfl": Facts(
        "one model or alone", "–", "each update; losses", "1 or 2", "1 or 2", "shared model"
    ),
    "fedfa": Facts("one model", "–", "each update; losses", "1", "1", "the model"),
    "ifca": BEST_OF_K,
    "flsc": BEST_OF_K,
    "split-half": Facts("groups", "found", "each update", "1 or 2", "1 to 3", "walk down a tree"),
    "tuned": Facts(
        "own models", "any", "as its method; held-out losses", "any", "any", "its method's"
    ),
    "race": Facts(
        "what is best", "any", "as its methods; held-out losses", "any", "any", "what is used"
    ),
    "cfl-gp": Facts(
        "groups", "`models`", "sketch of each update", "1 or 2", "1 or 2", "largest group"
    ),
    "clove": Facts("groups", "`models`", "means; losses", "1 or k", "1", "by loss"),
    "pfedgraph": MIXTURES,
    "feddrift": Facts("groups, drift", "`delta`", "means; losses", "1 to k + 1", "1", "by loss"),
    "split-half-private": Facts("groups", "found", "sums", "k", "k slots", "by loss"),
    "split-half-sums": Facts(
        "groups", "found", "sums; choices", "1 to k + 1", "1", "walk down a tree"
    ),
}

NOT_AT_ARXIV = {
    "race": "–",
    "acfl": "[HETiA](https://conference.hetia.org/?p=6893)",
    "flsc": "IoT-J 2022",
    "cfl-gp": "ICML 2024",
    "pfedgraph": "ICML 2023",
}
FIRST_OF_SEVERAL = {"tuned": "1910.10252"}
"""Methods whose header names several papers, of which another than the first one is theirs."""


def paper(name: str) -> str:
    """The paper of a method: the first one that the header of its file names."""
    if name in NOT_AT_ARXIV:
        return NOT_AT_ARXIV[name]
    header = sys.modules[METHODS[name].__module__].__doc__ or ""
    if "Coterie's own" in header:
        return "–"
    number = FIRST_OF_SEVERAL.get(name) or re.findall(r"\b\d{4}\.\d{5}\b", header)[0]
    return f"[{number}]({ARXIV}{number})"


def methods() -> str:
    """The methods with their cards and papers."""
    rows = [
        (f"[`{name}`](methods/{name}.md)", first_line(cls), paper(name))
        for name, cls in METHODS.items()
    ]
    return table(("method", "what it does", "paper"), rows)


def method_table() -> str:
    """All methods with what sets them apart; those with the same facts share a row."""
    alike: dict[Facts, list[str]] = {}
    for name in METHODS:
        alike.setdefault(FACTS[name], []).append(f"`{name}`")
    rows = [
        (
            ", ".join(names),
            facts.use,
            facts.groups,
            facts.server_sees,
            facts.down,
            facts.up,
            facts.newcomers,
        )
        for facts, names in alike.items()
    ]
    head = ("method", "clients use", "groups", "server sees", "down", "up", "newcomers")
    return table(head, rows)


def presets() -> str:
    """The presets of all methods."""
    rows = []
    for name, method_type in METHODS.items():
        for preset_name, settings in presets_of(method_type).items():
            rows.append((f"`{name}`", f"`{preset_name}`", f"`{assignments(settings)}`"))
    return table(("method", "preset", "settings"), rows)


PARTS = {"methods": methods, "method-table": method_table, "presets": presets}
