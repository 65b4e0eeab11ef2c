"""What is outside the file: homes, holders, leases, settings."""
