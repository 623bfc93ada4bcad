"""Plans for a model on the laboratory's GPUs: make, compare, save and measure them."""
