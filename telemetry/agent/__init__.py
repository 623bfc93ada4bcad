"""What runs on a GPU node: it samples the GPUs and sends what it reads. No Django."""
