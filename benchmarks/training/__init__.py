"""The training library and starts of training."""
