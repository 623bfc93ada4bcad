"""Language models with an OpenAI-compatible API, on the GPUs of reservations."""
