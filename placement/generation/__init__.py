"""Language models that answer with the API of OpenAI, on the GPUs of reservations."""
