"""What the platform sends to others' servers: signatures, and the networks that it never connects to."""
