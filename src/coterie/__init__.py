"""Clustered federated learning: find which clients should learn together, and train them that way.

>>> import coterie
>>> for round in coterie.run("cfl", "digits/label-permutation", rounds=2, workers=1):
...     print(round.number, len(round.assignment.groups))
1 1
2 1
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from coterie.checking import check as check
    from coterie.core import Training as Training
    from coterie.engines.inprocess import Position as Position
    from coterie.engines.inprocess import Round as Round
    from coterie.experiment import Experiment as Experiment
    from coterie.export import load as load
    from coterie.export import save as save
    from coterie.layout import Layout as Layout
    from coterie.methods import METHODS as METHODS
    from coterie.report.explain import explain as explain
    from coterie.report.figures import plot as plot
    from coterie.report.page import write_report as write_report
    from coterie.report.summary import compare as compare
    from coterie.report.summary import summary as summary
    from coterie.runs import begin as begin
    from coterie.runs import reopen as reopen
    from coterie.runs import run as run
    from coterie.scenario import SCENARIOS as SCENARIOS
    from coterie.scenario import Scenario as Scenario
    from coterie.suggestion import Suggestion as Suggestion
    from coterie.suggestion import suggest as suggest
    from coterie.world import ClientData as ClientData
    from coterie.world import Split as Split
    from coterie.world import World as World

_PUBLIC = {
    "ClientData": "world",
    "Experiment": "experiment",
    "Layout": "layout",
    "METHODS": "methods",
    "Position": "engines.inprocess",
    "Round": "engines.inprocess",
    "SCENARIOS": "scenario",
    "Scenario": "scenario",
    "Split": "world",
    "Suggestion": "suggestion",
    "Training": "core",
    "World": "world",
    "begin": "runs",
    "check": "checking",
    "compare": "report.summary",
    "explain": "report.explain",
    "load": "export",
    "plot": "report.figures",
    "reopen": "runs",
    "run": "runs",
    "save": "export",
    "suggest": "suggestion",
    "summary": "report.summary",
    "write_report": "report.page",
}
"""Public name -> module, imported when first used: ``coterie --help`` must not wait for PyTorch."""

__all__ = ["__version__", *_PUBLIC]


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'coterie' has no attribute {name!r}")
    value = getattr(import_module(f"coterie.{_PUBLIC[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
