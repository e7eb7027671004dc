"""Vertex AI's gRPC services, behind TLS, handed on to the platform's REST routes.

Google's SDK speaks gRPC unless it is told otherwise, and gRPC there means TLS. The bridge is a process of its own with nothing
but the platform's address: it keeps no state, has no token, and hands on the one that each call brings. Needs the extra
``trainmaster[vertex-bridge]``.
"""
