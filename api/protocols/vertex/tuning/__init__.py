"""``projects.locations.hyperparameterTuningJobs``: a study of ours each, whose trials are jobs.

https://cloud.google.com/vertex-ai/docs/reference/rest/v1/projects.locations.hyperparameterTuningJobs
"""
