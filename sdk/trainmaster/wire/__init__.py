"""What goes over the wire between server and clients, as pydantic models. Unknown fields are kept out silently, so
that a client of today reads a server of tomorrow.
"""
