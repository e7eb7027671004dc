"""The embedded platform: one command starts API and scheduler on this machine and keeps them running."""
