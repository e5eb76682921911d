"""The table of all methods: what each does for whom, what the server sees, and what it sends; and the presets."""

from __future__ import annotations

from dataclasses import dataclass

from measured import table

from coterie import METHODS
from coterie.methods._presets import presets_of
from coterie.report.listing import assignments

ARXIV = "https://arxiv.org/abs/"


@dataclass(frozen=True)
class Facts:
    """What a row says of a method, as its card explains.

    Attributes:
        family: What clients get.
        needs_number: Whether the number of groups must be given.
        server_sees: What the server learns of single clients.
        traffic: What one client receives and sends in a round.
        newcomers: What a client has that joins later.
        paper: The number at arXiv, or the place of the paper; empty if there is none.
    """

    family: str
    needs_number: str
    server_sees: str
    traffic: str
    newcomers: str
    paper: str = ""


AS_FEDAVG = "one model, one update"
SHARED_FIRST = "the shared model until they train"
MEANS = "means are enough"
UPDATES = "each update"

FACTS = {
    "auto": Facts(
        "chooses",
        "no",
        "each update, sums of losses",
        "as FedAvg; twice while it compares",
        "the model in use",
    ),
    "fedavg": Facts("one model", "–", MEANS, AS_FEDAVG, "the model", "1602.05629"),
    "independent": Facts("alone", "–", "nothing", "nothing", "the first model", "2401.13236"),
    "cfl": Facts("groups", "no", UPDATES, AS_FEDAVG, "walk down the tree of splits", "1910.01991"),
    "flhc": Facts(
        "groups",
        "no: a threshold",
        "each update, once",
        AS_FEDAVG,
        "nearest update, after one exchange",
        "2004.11791",
    ),
    "hcct": Facts(
        "groups",
        "no: a tradeoff",
        UPDATES,
        AS_FEDAVG,
        "group of most benefit, after one round",
        "2401.13236",
    ),
    "hcct-e": Facts("groups", "no: a tradeoff", UPDATES, AS_FEDAVG, "as HCCT", "2401.13236"),
    "hcct-p": Facts(
        "groups, own head",
        "no: a tradeoff",
        "each update but the head's",
        "as FedAvg without the head",
        "as HCCT, first head",
        "2401.13236",
    ),
    "fedper": Facts(
        "one model, own head",
        "–",
        MEANS,
        "as FedAvg without the head",
        "shared layers, first head",
        "1912.00818",
    ),
    "ditto": Facts("personal models", "–", MEANS, AS_FEDAVG, SHARED_FIRST, "2012.04221"),
    "apfl": Facts("personal models", "–", MEANS, AS_FEDAVG, SHARED_FIRST, "2003.13461"),
    "fedrep": Facts(
        "one model, own head",
        "–",
        MEANS,
        "as FedAvg without the head",
        "shared layers, first head",
        "2102.07078",
    ),
    "fedbabu": Facts("personal models", "–", MEANS, AS_FEDAVG, SHARED_FIRST, "2106.06042"),
    "knn-per": Facts("personal models", "–", MEANS, AS_FEDAVG, "served at once", "2111.09360"),
    "acfl": Facts(
        "groups, personal models",
        "no: a threshold",
        UPDATES,
        AS_FEDAVG,
        "most similar client's group",
        "https://conference.hetia.org/?p=6893",
    ),
    "maxfl": Facts(
        "one model, or alone",
        "–",
        "each client's model, losses",
        "two exchanges: two models, one update",
        "the global model",
        "2205.14840",
    ),
    "fedfa": Facts(
        "one model", "–", "each update, accuracies", AS_FEDAVG, "the model", "2012.10069"
    ),
    "ifca": Facts(
        "groups",
        "yes",
        "choices, losses; means",
        "k models, one update",
        "choose by loss",
        "2006.04088",
    ),
    "flsc": Facts(
        "groups that overlap",
        "yes",
        "choices, losses; means",
        "k models, one update",
        "choose by loss",
        "IoT-J 2022",
    ),
    "split-half": Facts(
        "groups",
        "no",
        UPDATES,
        "as FedAvg; two updates in a test round",
        "walk down the tree of splits",
    ),
    "tuned": Facts(
        "personal models",
        "as its method",
        "as its method, sums of losses",
        "as its method",
        "the method's model",
        "1910.10252",
    ),
    "race": Facts(
        "chooses",
        "as its methods",
        "as its methods, sums of losses",
        "all methods together",
        "the model in use",
    ),
    "cfl-gp": Facts(
        "groups",
        "yes",
        "a sketch of each update",
        "as FedAvg; two models and updates in a clustering round",
        "largest group, until a clustering round",
        "ICML 2024",
    ),
    "clove": Facts(
        "groups",
        "yes",
        "k losses, then means",
        "k models until groups are final; one update",
        "most frequent model, then by loss",
        "2506.22427",
    ),
    "feddrift": Facts(
        "groups, data change",
        "no: a threshold",
        "losses; means",
        "as FedAvg; k models twice in a time step",
        "choose by loss",
        "2206.00799",
    ),
    "split-half-private": Facts(
        "groups", "no", "sums with noise", "k models, k slots", "take part at once"
    ),
    "split-half-sums": Facts(
        "groups",
        "no",
        "sums, and who is in which group",
        "as FedAvg; k² numbers in a test round",
        "walk to their group",
    ),
}


def method_table() -> str:
    """All methods with what sets them apart."""
    rows = []
    for name in METHODS:
        facts = FACTS[name]
        rows.append(
            (
                f"`{name}`",
                facts.family,
                facts.needs_number,
                facts.server_sees,
                facts.traffic,
                facts.newcomers,
                _link(facts.paper),
            )
        )
    head = (
        "method",
        "clients get",
        "needs k?",
        "server sees",
        "a client gets, sends",
        "newcomers",
        "paper",
    )
    return table(head, rows)


def _link(paper: str) -> str:
    if paper[:4].isdecimal():
        return f"[{paper}]({ARXIV}{paper})"
    return f"[paper]({paper})" if paper.startswith("https:") else paper or "–"


def presets() -> str:
    """The presets of all methods."""
    rows = []
    for name, method_type in METHODS.items():
        for preset_name, settings in presets_of(method_type).items():
            rows.append((f"`{name}`", f"`{preset_name}`", f"`{assignments(settings)}`"))
    return table(("method", "preset", "settings"), rows)


PARTS = {"method-table": method_table, "presets": presets}
