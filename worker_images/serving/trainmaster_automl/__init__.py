"""The trials of AutoML: one model of one family, validated; and the best one once more, tested and saved to be served.

In the same distribution as the server of models, so that what trains a model and what serves it are of the same versions.
"""
