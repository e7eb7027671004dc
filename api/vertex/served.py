"""The collections that share one set of routes."""

from __future__ import annotations

from typing import Final

from api.vertex import custom_jobs, models, training_pipelines, tuning
from api.vertex.collection import Collection, JobCollection
from api.vertex.serving import batch_jobs, endpoints

COLLECTIONS: Final[dict[str, Collection]] = {
    custom_jobs.COLLECTION: JobCollection(custom_jobs.COLLECTION, custom_jobs.create, custom_jobs.view),
    training_pipelines.COLLECTION: JobCollection(
        training_pipelines.COLLECTION,
        training_pipelines.create,
        lambda _platform, found: training_pipelines.view(found),
    ),
    tuning.COLLECTION: tuning.TuningJobs(),
    models.COLLECTION: models.Models(),
    endpoints.COLLECTION: endpoints.Endpoints(),
    batch_jobs.COLLECTION: JobCollection(batch_jobs.COLLECTION, batch_jobs.create, batch_jobs.view),
}
