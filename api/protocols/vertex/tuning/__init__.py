"""``projects.locations.hyperparameterTuningJobs``: a study of ours each, whose trials are jobs.

https://cloud.google.com/vertex-ai/docs/reference/rest/v1/projects.locations.hyperparameterTuningJobs
"""

from __future__ import annotations

from api.protocols.vertex.tuning.resources import COLLECTION, TuningJobs

__all__ = ["COLLECTION", "TuningJobs"]
