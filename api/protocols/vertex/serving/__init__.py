"""Endpoints, deployments, predictions, batch predictions."""
