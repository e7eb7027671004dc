"""Vertex AI's custom containers for predictions: port, and model folder.

https://cloud.google.com/vertex-ai/docs/predictions/custom-container-requirements
"""

from __future__ import annotations

from core.domain.contracts.context import Seat


def variables(seat: Seat) -> dict[str, str]:
    """``AIP_HTTP_PORT``: the replica's port; ``AIP_STORAGE_URI``: the folder that the model is mounted at."""
    return {
        "AIP_HTTP_PORT": str(seat.replica.ports.framework),
        **({"AIP_STORAGE_URI": seat.context.paths.data} if seat.spec.input is not None else {}),
    }
