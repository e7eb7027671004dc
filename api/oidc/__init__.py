"""Logins by OpenID Connect, of browsers and of the command line.

``providers`` (settings) ◄── ``provider_client`` (discovery, keys, token requests) ◄── ``id_tokens`` (validation) ◄──
``flows`` (both flows; no database) ; ``provisioning`` (users and memberships; no network) ; ``routes`` joins them.
"""
