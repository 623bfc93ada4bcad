"""What the pages and APIs of all capabilities share."""
