"""Other systems' APIs, which their unmodified clients use."""
