"""Trial schedulers of a study (Ray Tune's word; the search algorithm is ``StudySpec.algorithm``): ``fidelity`` (ASHA
with promotions) and ``population`` (PBT). Their trials resume from checkpoints of other trials.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from trainmaster.studies.mistakes import StudyMistakes
from trainmaster.studies.model import Budget, Fidelity, Metric, Population

# A parameter's name becomes an argument, `--name=value`, and a name in constraints.
PARAMETER_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,99}")
_TEMPLATE_HINT: Final = "write the trials' job as template, or omit this"


class TrialSchedulers:
    """Parses and checks successive halving (``fidelity``) and population-based training (``population``)."""

    def __init__(self, mistakes: StudyMistakes) -> None:
        self._mistakes = mistakes
        self._add = mistakes.add
        self.fidelity: Fidelity | None = None
        self.population: Population | None = None

    def read(self, document: Mapping[str, Any], metrics: tuple[Metric, ...], budget: Budget | None) -> TrialSchedulers:
        if document.get("fidelity") is not None:
            self.fidelity = self._mistakes.validate(Fidelity, document["fidelity"], ("fidelity",))
            self._check("fidelity", document, metrics)
        if document.get("population") is not None:
            self.population = self._mistakes.validate(Population, document["population"], ("population",))
            self._check("population", document, metrics)
            if document.get("fidelity") is not None:
                self._add(("population",), "cannot be combined with fidelity", "omit one of the two")
        if self.fidelity is not None:
            self._check_fidelity(self.fidelity, document)
        if self.population is not None and budget is not None:
            self._check_population(self.population, budget)
        return self

    def _check(self, field: str, document: Mapping[str, Any], metrics: tuple[Metric, ...]) -> None:
        if document.get("template") is None:
            self._add((field,), "needs jobs with checkpoints, and the study has no template", _TEMPLATE_HINT)
        if len(metrics) > 1:
            self._add((field,), "compares trials by one metric, but the study has several", "omit it")
        if document.get("stopping") is not None:
            self._add(
                ("stopping",), f"cannot be combined with {field}, which ends trials itself", "omit one of the two"
            )

    def _check_fidelity(self, fidelity: Fidelity, document: Mapping[str, Any]) -> None:
        parameters = document.get("parameters")
        if not PARAMETER_NAME.fullmatch(fidelity.parameter):
            self._add(
                ("fidelity", "parameter"),
                "is not a parameter name: letters, digits, '_', '-' and '.', starting with a letter or '_'",
            )
        elif isinstance(parameters, dict) and fidelity.parameter in parameters:
            self._add(
                ("fidelity", "parameter"),
                f"{fidelity.parameter} is also a searched parameter, but halving sets its value",
                f"remove {fidelity.parameter} from parameters",
            )
        if fidelity.max <= fidelity.min:
            self._add(
                ("fidelity",),
                f"min is {fidelity.min} and max is {fidelity.max}: there are no rungs",
                "write a larger max, such as min: 1, max: 27",
            )

    def _check_population(self, population: Population, budget: Budget) -> None:
        if int(budget.parallel * population.quantile) < 1:
            least = next(size for size in range(2, 101) if int(size * population.quantile) >= 1)
            self._add(
                ("population", "quantile"),
                f"parallel={budget.parallel} is too small for quantile={population.quantile:g}: the worst "
                f"{population.quantile * 100:g} % of {budget.parallel} trials is none",
                f"write budget.parallel: {least} or more",
            )
