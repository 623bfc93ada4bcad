"""Running jobs compared with better plans: proposals to move, and moves."""
