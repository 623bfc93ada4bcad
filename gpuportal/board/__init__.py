"""The board: every GPU of the laboratory, live, as cards, as a table and as a wall."""
