"""What nodes report about their GPUs: samples, hardware, frames, states, units."""
