"""A stateless gateway from Vertex AI's gRPC services (with TLS) to the platform's REST routes.

Google's SDK uses gRPC by default, and gRPC with TLS. The bridge is a separate process that only knows the platform's
URL: it has no state and no token, and forwards the token of each call. Needs the extra ``trainmaster[vertex-bridge]``.
"""
