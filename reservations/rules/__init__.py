"""The pure kernel of booking: windows, policy, prices, quotas, decisions."""
