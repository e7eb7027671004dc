"""The code of jobs: contents and differences."""
