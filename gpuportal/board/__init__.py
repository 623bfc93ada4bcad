"""The board: every GPU of the lab, live."""
