"""The worker's side: model view, gradients, connections."""
