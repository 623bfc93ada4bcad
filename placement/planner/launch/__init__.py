"""From a plan to what each process does, and the recipes that start it."""
