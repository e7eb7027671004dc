"""Models and their versions, endpoints, deployments, predictions, batch predictions."""
