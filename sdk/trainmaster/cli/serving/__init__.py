"""Commands about models, endpoints and batch predictions."""
