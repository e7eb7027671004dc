"""The folder that ``trainmaster vertex-env`` adds to ``PYTHONPATH``; Python imports its ``sitecustomize`` at
startup.
"""
