"""Questions that an expert answered before the planner was asked, and their answers now."""
