"""What is inside the file: opening, shape, clocks, lineage, liveness."""
