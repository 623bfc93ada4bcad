"""Convert a plan to the processes of each node and the files that start them."""
