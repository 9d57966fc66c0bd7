"""A real Apache Kafka for tests and development."""
