"""Code that runs on a GPU node: it samples the GPUs and sends the readings. No
Django."""
