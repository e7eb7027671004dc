"""Sharing a cluster: resources, quotas, policy, fair shares, quarantine."""
