"""Pydantic models of the REST API's requests and responses. Responses ignore unknown fields, so that an older client
can read the responses of a newer server.
"""
