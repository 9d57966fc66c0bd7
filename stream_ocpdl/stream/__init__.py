"""Bytes, batches and Kafka."""
