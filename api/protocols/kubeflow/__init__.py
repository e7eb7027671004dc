"""Kubeflow's TrainJob API."""
