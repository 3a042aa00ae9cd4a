"""Sharding plans: placements, the estimator, the partitioner, the planner, its stats. NumPy only."""
