"""AutoML: what is searched for which data, and the study that does it. Pure."""
