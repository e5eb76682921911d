"""Clustered federated learning: find which clients should learn together, and train them that way.

Example:
    >>> import coterie
    >>> for round in coterie.run("cfl", "digits/label-permutation", rounds=2, workers=1):
    ...     print(round.number, len(round.assignment.groups))
    1 1
    2 1
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.2.0"

if TYPE_CHECKING:
    from coterie.boundary import Boundary as Boundary
    from coterie.contrib.bench.benching import bench as bench
    from coterie.contrib.suggest.suggesting import suggest as suggest
    from coterie.contrib.suggest.suggestion import Suggestion as Suggestion
    from coterie.contrib.tune.tuning import tune as tune
    from coterie.core import Assignment as Assignment
    from coterie.core import Position as Position
    from coterie.core import Round as Round
    from coterie.core import Training as Training
    from coterie.data.attendance import Attendance as Attendance
    from coterie.data.frames import from_frame as from_frame
    from coterie.data.generated import from_function as from_function
    from coterie.data.objective import CLASSIFICATION as CLASSIFICATION
    from coterie.data.objective import METRICS as METRICS
    from coterie.data.objective import MULTILABEL as MULTILABEL
    from coterie.data.objective import REGRESSION as REGRESSION
    from coterie.data.objective import Metric as Metric
    from coterie.data.objective import Objective as Objective
    from coterie.data.own import from_lists as from_lists
    from coterie.data.scenario import SCENARIOS as SCENARIOS
    from coterie.data.scenario import Scenario as Scenario
    from coterie.data.schema import Schema as Schema
    from coterie.data.world import ClientData as ClientData
    from coterie.data.world import Split as Split
    from coterie.data.world import World as World
    from coterie.data.world import whole as whole
    from coterie.methods import METHODS as METHODS
    from coterie.models.layout import Layout as Layout
    from coterie.report.compared import compare as compare
    from coterie.report.explain import explain as explain
    from coterie.report.figures import plot as plot
    from coterie.report.page import write_report as write_report
    from coterie.report.summary import summary as summary
    from coterie.robust import Robust as Robust
    from coterie.runs.checking import check as check
    from coterie.runs.experiment import Experiment as Experiment
    from coterie.runs.export import save as save
    from coterie.runs.folders import begin as begin
    from coterie.runs.folders import reopen as reopen
    from coterie.runs.loading import load as load
    from coterie.runs.onnx_files import to_onnx as to_onnx
    from coterie.runs.placing import Placement as Placement
    from coterie.runs.placing import place as place
    from coterie.runs.predicting import Predictions as Predictions
    from coterie.runs.predicting import predict as predict
    from coterie.runs.run import Run as Run
    from coterie.runs.run import run as run
    from coterie.settings import UserError as UserError

_MODULE_OF_NAME = {
    "Assignment": "core",
    "Attendance": "data.attendance",
    "Boundary": "boundary",
    "CLASSIFICATION": "data.objective",
    "ClientData": "data.world",
    "Experiment": "runs.experiment",
    "Layout": "models.layout",
    "METHODS": "methods",
    "METRICS": "data.objective",
    "MULTILABEL": "data.objective",
    "Metric": "data.objective",
    "Objective": "data.objective",
    "Placement": "runs.placing",
    "Position": "core",
    "Predictions": "runs.predicting",
    "REGRESSION": "data.objective",
    "Robust": "robust",
    "Round": "core",
    "Run": "runs.run",
    "SCENARIOS": "data.scenario",
    "Scenario": "data.scenario",
    "Schema": "data.schema",
    "Split": "data.world",
    "Suggestion": "contrib.suggest.suggestion",
    "Training": "core",
    "UserError": "settings",
    "World": "data.world",
    "begin": "runs.folders",
    "bench": "contrib.bench.benching",
    "check": "runs.checking",
    "compare": "report.compared",
    "explain": "report.explain",
    "from_frame": "data.frames",
    "from_function": "data.generated",
    "from_lists": "data.own",
    "load": "runs.loading",
    "place": "runs.placing",
    "plot": "report.figures",
    "predict": "runs.predicting",
    "reopen": "runs.folders",
    "run": "runs.run",
    "save": "runs.export",
    "suggest": "contrib.suggest.suggesting",
    "summary": "report.summary",
    "to_onnx": "runs.onnx_files",
    "tune": "contrib.tune.tuning",
    "whole": "data.world",
    "write_report": "report.page",
}
"""Public name -> module, which is imported on first use: ``coterie --help`` must not wait for
PyTorch."""

__all__ = ["__version__", *_MODULE_OF_NAME]


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF_NAME:
        raise AttributeError(f"module 'coterie' has no attribute {name!r}")
    value = getattr(import_module(f"coterie.{_MODULE_OF_NAME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    # Completion shows what users need, without modules and helpers.
    return sorted(__all__)
