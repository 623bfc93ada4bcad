"""What nodes send about their GPUs: samples, hardware, frames. Units and errors."""
