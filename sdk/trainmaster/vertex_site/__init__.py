"""The folder that ``trainmaster vertex-env`` puts on ``PYTHONPATH``: Python reads its ``sitecustomize`` at every start."""
