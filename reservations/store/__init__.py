"""What several capabilities read and write: snapshots, locks, ledger, audit log."""
