"""Nodes: labels, cordon and drain, occupancy, quarantine."""
