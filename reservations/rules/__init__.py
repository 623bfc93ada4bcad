"""The pure kernel of booking: windows, policy, prices, decisions, errors."""
