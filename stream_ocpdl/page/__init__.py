"""What people look at in a browser: atoms drawn as what they are, a report, and what both need."""
