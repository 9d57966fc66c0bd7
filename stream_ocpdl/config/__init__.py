"""The settings of a service: typed, gathered, explained and checked."""
