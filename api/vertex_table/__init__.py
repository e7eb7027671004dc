"""The administrator's mapping of Vertex AI's machine types, images and names."""
