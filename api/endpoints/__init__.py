"""Endpoints: deployments, the prediction proxy, batch predictions."""
