"""Records and the mapping table of Vertex AI's protocol."""
