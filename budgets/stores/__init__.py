"""Where a ledger is kept: a protocol, a store in memory, and one in a SQLite file."""
