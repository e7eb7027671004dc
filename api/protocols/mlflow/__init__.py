"""MLflow's tracking REST API."""
