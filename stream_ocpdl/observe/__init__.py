"""What an operator sees of a running service: metrics, endpoints."""
