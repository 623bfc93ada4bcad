"""People, shares, the calendar and the ledger."""
