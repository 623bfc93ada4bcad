"""Other systems that give out GPUs, and the time that they hold for reservations."""
