"""Questions that an expert answered first, and the script that asks them."""
