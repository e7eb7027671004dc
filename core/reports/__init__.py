"""Ingestion of the replicas' reports, from the network or from their spools, into the database."""
