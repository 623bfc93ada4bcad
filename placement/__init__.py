"""From a model to a plan to a running job."""
