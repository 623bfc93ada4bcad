"""The pages of gpuportal in a real browser."""
