"""What methods with thresholds would have to be set to: ``coterie suggest``, by the split-half test's finding."""

from __future__ import annotations

from coterie.suggestion.results import Advice as Advice
from coterie.suggestion.results import Finding as Finding
from coterie.suggestion.results import Range as Range
from coterie.suggestion.results import Suggestion as Suggestion
from coterie.suggestion.suggesting import EXCHANGES as EXCHANGES
from coterie.suggestion.suggesting import suggest as suggest
