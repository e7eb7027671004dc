"""TensorBoards: experiments, runs, time series."""
