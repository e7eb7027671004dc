"""Files on volumes: outputs, archives, logs, checkpoints, the registry."""
