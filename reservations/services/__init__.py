"""Every write of the first floor. Keyword-only; ``now`` is aware UTC; durable.

Locks are taken in one order everywhere: Accounts with a quota (pk order), the
User, the Gpus (pk order), the Reservations (pk order: the one that changes and
the flex in its way). A rule that says no raises a
Refusal and nothing is written.
"""
