"""Registry of the collections that share one set of routes."""

from __future__ import annotations

from typing import Final

from api.protocols.vertex import tuning
from api.protocols.vertex.registry import models
from api.protocols.vertex.resource_collection import Collection, JobCollection
from api.protocols.vertex.serving import batch_jobs, endpoints
from api.protocols.vertex.training import custom_jobs, pipelines

COLLECTIONS: Final[dict[str, Collection]] = {
    custom_jobs.COLLECTION: JobCollection(custom_jobs.COLLECTION, custom_jobs.create, custom_jobs.view),
    pipelines.COLLECTION: JobCollection(
        pipelines.COLLECTION,
        pipelines.create,
        lambda _context, found: pipelines.view(found),
    ),
    tuning.COLLECTION: tuning.TuningJobs(),
    models.COLLECTION: models.Models(),
    endpoints.COLLECTION: endpoints.Endpoints(),
    batch_jobs.COLLECTION: JobCollection(batch_jobs.COLLECTION, batch_jobs.create, batch_jobs.view),
}
