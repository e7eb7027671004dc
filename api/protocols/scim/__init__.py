"""SCIM 2.0 (RFC 7643, RFC 7644): an identity provider creates, changes and disables users, and tells their groups.

``routes`` (HTTP) ─► ``resources`` (rows, and their effects on users and memberships); ``api.oidc.provisioning`` maps
groups to projects, as for logins.
"""
