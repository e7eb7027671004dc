"""Flows of several requests: pagination, streams, waiting, uploads and downloads."""
