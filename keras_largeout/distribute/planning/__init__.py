"""Where rows go, and why: placements, costs, the planner. NumPy alone."""
