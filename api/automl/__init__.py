"""AutoML requests: data profiling and the study that follows."""
