"""AutoML's trials: one model of one family, validated; and the final run, which tests and saves the best one.

In the same distribution as the model server, so that training and serving use the same versions.
"""
