"""Studies: how they and their trials move, what their results are, when a trial or the whole is over. Pure."""
